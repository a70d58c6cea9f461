"""Finds tokens that are written out in a text, whatever stands around them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

PREFIX_LENGTH = 2
"""Texts are told apart by so many characters before they are looked up."""


class AddedTokens:
    """A set of texts with their ids; the leftmost occurrence counts, and of those the longest.

    strips_right: ids after which white space is dropped.
    """

    def __init__(self, ids: Mapping[str, int], strips_right: Collection[int] = ()) -> None:
        self._ids = ids
        self._strips_right = strips_right
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[:PREFIX_LENGTH], set()).add(len(text))
        self._lengths = {prefix: sorted(found, reverse=True) for prefix, found in lengths.items()}
        prefixes = sorted(lengths, key=len, reverse=True)
        self._prefix = re.compile("|".join(map(re.escape, prefixes))) if prefixes else None

    def split(self, text: str) -> Iterator[str | int]:
        """The text in order: ids of tokens, and what lies between them (never empty)."""
        if self._prefix is None:
            if text:
                yield text
            return
        start = at = 0
        while candidate := self._prefix.search(text, at):
            at = candidate.start()
            token = self._longest_at(text, at, candidate[0])
            if token is None:
                at += 1
                continue
            if at > start:
                yield text[start:at]
            yield self._ids[token]
            at += len(token)
            if self._ids[token] in self._strips_right:
                while at < len(text) and text[at].isspace():
                    at += 1
            start = at
        if start < len(text):
            yield text[start:]

    def _longest_at(self, text: str, at: int, prefix: str) -> str | None:
        # A one-character token is a prefix of its own beside longer ones.
        for key in (prefix, prefix[:1]):
            for length in self._lengths.get(key, ()):
                if text[at : at + length] in self._ids:
                    return text[at : at + length]
        return None
