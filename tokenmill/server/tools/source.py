"""What a model writes, for parsers that read it as if all of it were there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")

Reading = Generator[None, None, T]
"""Reads from a source. Yields where more must come before it can go on."""

SPACE = " \t\r\n"


class Source:
    """Text as it comes in. Whatever is passed on was certain, however the text was divided."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False

    def feed(self, text: str) -> None:
        """More has come."""
        self.text += text

    def end(self) -> None:
        """Nothing more comes."""
        self.ended = True

    def take(self, count: int) -> str:
        """Remove text that is there."""
        taken, self.text = self.text[:count], self.text[count:]
        return taken

    def put_back(self, text: str) -> None:
        """Undo ``take``."""
        self.text = text + self.text

    def peek(self) -> Reading[str]:
        """The next character, which stays; empty at the end."""
        while not self.text and not self.ended:
            yield
        return self.text[:1]

    def space(self) -> Reading[str]:
        """Take white space; it ends where something else is, or at the end."""
        taken = ""
        while True:
            rest = self.text.lstrip(SPACE)
            taken += self.take(len(self.text) - len(rest))
            if rest or self.ended:
                return taken
            yield

    def accept(self, mark: str) -> Reading[bool]:
        """Take ``mark`` if it comes next."""
        while not self.ended and len(self.text) < len(mark) and mark.startswith(self.text):
            yield
        if not self.text.startswith(mark):
            return False
        self.take(len(mark))
        return True

    def until(self, marks: Sequence[str], emit: Callable[[str], None]) -> Reading[str | None]:
        """Pass on what stands before the first of ``marks``, and take that; None if none comes."""
        while True:
            at, mark = _first(self.text, marks, self.ended)
            if at:
                emit(self.take(at))
            if mark is not None:
                self.take(len(mark))
                return mark
            if self.ended:
                return None
            yield

    def text_until(self, marks: Sequence[str]) -> Reading[tuple[str, str | None]]:
        """What stands before the first of ``marks``, and which that is."""
        parts: list[str] = []
        mark = yield from self.until(marks, parts.append)
        return "".join(parts), mark


def _first(text: str, marks: Sequence[str], ended: bool) -> tuple[int, str | None]:
    """Where the first mark begins, the longest of those that do; None if that is not certain yet."""
    found = {mark: at for mark in marks if (at := text.find(mark)) >= 0}
    first = min(found.values(), default=len(text))
    if not ended:
        for at in range(max(0, len(text) - max(map(len, marks)) + 1), min(first + 1, len(text))):
            rest = text[at:]
            if any(len(rest) < len(mark) and mark.startswith(rest) for mark in marks):
                return at, None
    if not found:
        return len(text), None
    return first, max((mark for mark, at in found.items() if at == first), key=len)


def discard(text: str) -> None:
    """Takes text that nobody needs."""
