"""What the engine's front needs of a tokenizer, and the text of one growing answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tokenmill.engine.sampling_params import SamplingParams


class Tokenizer(Protocol):
    """Text to token ids, and tokens to bytes."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token within a text."""
        ...


class TextStream(Protocol):
    """The text of one answer, as its tokens come in."""

    @property
    def stopped_by(self) -> str | None:
        """The stop text that was found."""
        ...

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens make certain; it never ends within a character or within what may
        become a stop text. Once a stop text is found, nothing more comes."""
        ...

    def finish(self) -> str:
        """What is left."""
        ...


MakeTextStream = Callable[[SamplingParams, Sequence[int]], TextStream]
"""A new stream for an answer with these parameters to a prompt of these tokens."""


class Detokenizer(Protocol):
    """Text of tokens as they come in, in whole characters."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that has become certain."""
        ...

    def finish(self) -> str:
        """What is left."""
        ...


class StopChecker(Protocol):
    """Passes text on until it finds a stop text."""

    @property
    def stopped_by(self) -> str | None:
        """The stop text that was found."""
        ...

    def push(self, text: str) -> str:
        """Text that may be shown."""
        ...

    def finish(self) -> str:
        """What was withheld."""
        ...


class AnswerText:
    """A detokenizer, and what looks for stop texts in its output.

    min_tokens: in the text of that many tokens, nothing is looked for.
    """

    def __init__(self, detokenizer: Detokenizer, checker: StopChecker, min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._checker = checker
        self._unchecked = min_tokens

    @property
    def stopped_by(self) -> str | None:
        """The stop text that was found."""
        return self._checker.stopped_by

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens make certain."""
        text = ""
        if self._unchecked:
            early, token_ids = token_ids[: self._unchecked], token_ids[self._unchecked :]
            self._unchecked -= len(early)
            text = self._detokenizer.push(early)
        return text + self._checker.push(self._detokenizer.push(token_ids))

    def finish(self) -> str:
        """What is left."""
        return self._checker.push(self._detokenizer.finish()) + self._checker.finish()


class NoText:
    """The stream of an answer whose text nobody wants."""

    stopped_by: str | None = None

    def push(self, token_ids: Sequence[int]) -> str:
        """No text."""
        return ""

    def finish(self) -> str:
        """No text."""
        return ""
