"""From token ids to text as they come in."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import Protocol

from tokenmill.tokenizer.decoding import Decoding

_LONGEST_PARTIAL_CHARACTER = 3
"""Bytes of a UTF-8 character that is not yet whole, at most."""

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class TokenBytes(Protocol):
    """What detokenising needs of a tokenizer."""

    @property
    def decoding(self) -> Decoding:
        """How names become bytes."""
        ...

    @property
    def special_ids(self) -> Collection[int]:
        """Tokens that are marks rather than text."""
        ...

    def token_bytes(self, token_id: int, *, first: bool = False) -> bytes:
        """The bytes of a token; first: as the first of a text. Empty if there is no such token."""
        ...


class IncrementalDetokenizer:
    """The text of one growing sequence of tokens. Not for use by several threads at once.

    All texts that ``push`` and ``finish`` return, joined, are exactly ``tokenizer.decode`` of all the
    tokens, however they were divided. No text ends within a character: bytes that may become one are
    held back, and bytes that can't are replaced by U+FFFD.

    skip_special_tokens: leave BOS, EOS and other marks out. No supported tokenizer writes spaces around
    them, so there is nothing to choose about spaces between them.
    shown_token_ids: marks that are shown all the same.
    prompt_token_ids: what the tokens continue. Then the space of a first word is kept, and a character
    that began in the prompt is completed.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        *,
        skip_special_tokens: bool = True,
        shown_token_ids: Collection[int] = (),
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped: Collection[int] = tokenizer.special_ids if skip_special_tokens else ()
        if shown_token_ids:
            self._skipped = frozenset(self._skipped).difference(shown_token_ids)
        self._utf8 = _new_utf8_decoder("replace")
        self._spaces_to_strip = tokenizer.decoding.strip_spaces
        self._at_start = True
        if prompt_token_ids:
            self._continue_from(prompt_token_ids)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens make certain."""
        skipped, token_bytes = self._skipped, self._token_bytes
        shown = [token for token in token_ids if token not in skipped]
        if not shown:
            return ""
        parts = [token_bytes(token) for token in shown]
        if self._at_start:
            parts[0] = token_bytes(shown[0], first=True)
            self._at_start = False
        return self._stripped(self._utf8.decode(b"".join(parts)))

    def finish(self) -> str:
        """What was held back: U+FFFD if the last character never became whole."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        while self._spaces_to_strip and text:
            if text[0] != " ":
                self._spaces_to_strip = 0
                break
            text = text[1:]
            self._spaces_to_strip -= 1
        return text

    def _continue_from(self, prompt_token_ids: Sequence[int]) -> None:
        tail = b""
        for token in reversed(prompt_token_ids):
            if token not in self._skipped:
                self._at_start = False
                self._spaces_to_strip = 0
                tail = self._token_bytes(token) + tail
            if len(tail) >= _LONGEST_PARTIAL_CHARACTER:
                break
        self._utf8.decode(tail[-_LONGEST_PARTIAL_CHARACTER:])
