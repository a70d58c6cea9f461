"""Figures of an answer, for people and for programs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenmill.engine.outputs import RequestMetrics

MEGA = 1 << 20


@dataclass(frozen=True)
class Figures:
    """One answer in numbers. Times are in seconds, speeds in tokens a second; None: not known.

    cached_tokens: tokens of the prompt that did not have to be computed.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    prompt_tok_s: float | None
    generated_tok_s: float | None
    ttft_s: float | None
    total_s: float | None

    @classmethod
    def of(
        cls, prompt_tokens: int, cached_tokens: int, generated: int, metrics: RequestMetrics | None
    ) -> Figures:
        """From what the engine says about a request that has ended."""
        arrived = metrics.arrival_time if metrics else None
        scheduled = metrics.first_scheduled_time if metrics else None
        first = metrics.first_token_time if metrics else None
        last = metrics.last_token_time if metrics else None
        return cls(
            prompt_tokens,
            cached_tokens,
            generated,
            _rate(prompt_tokens - cached_tokens, scheduled, first),
            _rate(generated - 1, first, last),
            _between(arrived, first),
            _between(arrived, last),
        )

    def line(self) -> str:
        """For the terminal."""
        cached = f", {self.cached_tokens} cached" if self.cached_tokens else ""
        return (
            f"prompt {self.prompt_tokens} tokens{cached}, {_speed(self.prompt_tok_s)} | "
            f"generated {self.generated_tokens} tokens, {_speed(self.generated_tok_s)} | "
            f"time to first token {_seconds(self.ttft_s)}"
        )

    def usage(self) -> dict[str, Any]:
        """In the OpenAI API's words."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated_tokens,
            "total_tokens": self.prompt_tokens + self.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def timing(self) -> dict[str, float | None]:
        """For programs."""
        return {
            "ttft_s": self.ttft_s,
            "total_s": self.total_s,
            "prompt_tok_s": self.prompt_tok_s,
            "generated_tok_s": self.generated_tok_s,
        }


def print_dim(line: str) -> None:
    """A line on stderr that steps back behind the answer."""
    print(f"\033[2m{line}\033[0m" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)


def size_text(num_bytes: float) -> str:
    """Bytes for people, in powers of 1024."""
    for unit, factor in (("GiB", MEGA << 10), ("MiB", MEGA), ("KiB", 1 << 10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(end - start, 0.0)


def _rate(count: int, start: float | None, end: float | None) -> float | None:
    seconds = _between(start, end)
    return count / seconds if seconds and count > 0 else None


def _speed(value: float | None) -> str:
    return "- tokens/s" if value is None else f"{value:.1f} tokens/s"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
