"""Where the time of engine steps goes, part by part."""

from __future__ import annotations

from time import perf_counter_ns


class StepClock:
    """Adds up the nanoseconds of each part of a step: a few tenths of a microsecond of its own a step.

    total_ns: by part: "schedule", "fill" (the step buffers), "forward" (the model), "sample", "append"
    (tokens to their requests). What runs between two laps belongs to the later one.
    """

    def __init__(self) -> None:
        self.total_ns: dict[str, int] = dict.fromkeys(
            ("schedule", "fill", "forward", "sample", "append"), 0
        )
        self._since = 0

    def start(self) -> None:
        """A step begins."""
        self._since = perf_counter_ns()

    def lap(self, part: str) -> None:
        """A part has ended; the next begins."""
        now = perf_counter_ns()
        self.total_ns[part] += now - self._since
        self._since = now
