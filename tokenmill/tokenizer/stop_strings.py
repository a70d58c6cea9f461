"""Finds stop strings in a growing text."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.errors import RequestError


class StopStringChecker:
    """Passes text on until a stop string is found. Not for use by several threads at once.

    The string that is completed first wins; of several completed by the same character, the longest.
    So what is found does not depend on how the text was divided. At any time exactly the longest end
    of the text that could still become a stop string is held back.

    include_stop_str_in_output: pass the stop string on as well.

    Every stop string is followed with the automaton of Knuth, Morris and Pratt (1977).
    Raises RequestError if a stop string is empty.
    """

    def __init__(self, stop: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        if "" in stop:
            raise RequestError("a stop string is empty; give at least one character")
        self.stopped_by: str | None = None
        self._include = include_stop_str_in_output
        # Longest first, so that the first one found is the longest.
        self._stops = [(s, _failure_table(s)) for s in sorted(set(stop), key=len, reverse=True)]
        self._matched = [0] * len(self._stops)
        self._held = ""

    def push(self, text: str) -> str:
        """The text that may be passed on. Once ``stopped_by`` is set, nothing more comes."""
        if self.stopped_by is not None:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        matched = self._matched
        for end, char in enumerate(text, len(self._held) + 1):
            for index, (stop, failure) in enumerate(self._stops):
                length = matched[index]
                while length and stop[length] != char:
                    length = failure[length]
                if stop[length] == char:
                    length += 1
                if length == len(stop):
                    self.stopped_by = stop
                    self._held = ""
                    return held[:end] if self._include else held[: end - length]
                matched[index] = length
        keep = len(held) - max(matched)
        self._held = held[keep:]
        return held[:keep]

    def finish(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held


def _failure_table(stop: str) -> list[int]:
    """For each length, the longest proper end of that much of ``stop`` that is also its beginning."""
    table = [0] * (len(stop) + 1)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[length] != stop[index]:
            length = table[length]
        if stop[length] == stop[index]:
            length += 1
        table[index + 1] = length
    return table
