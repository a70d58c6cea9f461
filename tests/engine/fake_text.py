"""A tokenizer in which every token is one letter, and engines of fake models behind real fronts."""

from __future__ import annotations

from collections.abc import Sequence

from tests.engine.fake_model import EOS, Bench
from tokenmill.engine.async_engine import AsyncEngine
from tokenmill.engine.front import Front
from tokenmill.engine.sampling_params import SamplingParams

LETTERS = "abcdefghijklmnopqrstuvwxyz "


class LetterTokenizer:
    """Token t is letter t modulo 27; text becomes tokens 27 to 53."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [27 + LETTERS.index(letter) for letter in text]

    def token_bytes(self, token_id: int) -> bytes:
        return LETTERS[token_id % 27].encode()


class LetterStream:
    """Withholds as many letters as a stop text has, less one."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int]) -> None:
        self.stopped_by: str | None = None
        self._params = params
        self._held = ""

    def push(self, token_ids: Sequence[int]) -> str:
        if self.stopped_by is not None:
            return ""
        self._held += "".join(LETTERS[t % 27] for t in token_ids)
        stops = tuple(self._params.stop or ())
        found = [(self._held.index(s), s) for s in stops if s in self._held]
        if found:
            at, self.stopped_by = min(found)
            end = at + len(self.stopped_by) if self._params.include_stop_str_in_output else at
            return self._held[:end]
        keep = max((len(s) - 1 for s in stops), default=0)
        ready = self._held[: len(self._held) - keep]
        self._held = self._held[len(ready) :]
        return ready

    def finish(self) -> str:
        rest, self._held = self._held, ""
        return "" if self.stopped_by is not None else rest


def front_of(bench: Bench) -> Front:
    return Front(LetterTokenizer(), LetterStream, bench.engine.limits, frozenset({EOS}))


def async_engine_of(bench: Bench) -> AsyncEngine:
    return AsyncEngine(bench.engine, front_of(bench))
