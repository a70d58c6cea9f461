"""What the engine's front needs of a tokenizer, and the text of one growing answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tokenmill.engine.sampling_params import SamplingParams


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """Tokens that end a text."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        ...


class TextStream(Protocol):
    """The text of one answer, as its tokens come in."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens make certain; it never ends within a character or within what may
        become a stop text. Once a stop text is found, nothing more comes."""
        ...

    def finish(self) -> str:
        """What is left."""
        ...

    @property
    def stopped_by(self) -> str | None:
        """The stop text that was found."""
        ...


MakeTextStream = Callable[[SamplingParams], TextStream]
"""A new stream for an answer with these parameters."""


class Detokenizer(Protocol):
    """Text of tokens as they come in, in whole characters."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that has become certain."""
        ...

    def finish(self) -> str:
        """What is left."""
        ...


class StopChecker(Protocol):
    """Finds stop texts in text that comes in pieces."""

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that may be shown, and the stop text if one was found."""
        ...

    def finish(self) -> str:
        """What was withheld."""
        ...


class AnswerText:
    """A detokenizer, and what looks for stop texts in its output."""

    def __init__(self, detokenizer: Detokenizer, checker: StopChecker) -> None:
        self._detokenizer = detokenizer
        self._checker = checker
        self._stopped_by: str | None = None

    @property
    def stopped_by(self) -> str | None:
        """The stop text that was found."""
        return self._stopped_by

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens make certain."""
        if self._stopped_by is not None:
            return ""
        return self._check(self._detokenizer.push(token_ids))

    def finish(self) -> str:
        """What is left."""
        if self._stopped_by is not None:
            return ""
        text = self._check(self._detokenizer.finish())
        return text if self._stopped_by is not None else text + self._checker.finish()

    def _check(self, text: str) -> str:
        shown, self._stopped_by = self._checker.push(text)
        return shown


class NoText:
    """The stream of an answer whose text nobody wants."""

    stopped_by: str | None = None

    def push(self, token_ids: Sequence[int]) -> str:
        """No text."""
        return ""

    def finish(self) -> str:
        """No text."""
        return ""
