"""Reads JSON as it is written, without waiting for its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any

from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source

NAME_KEYS = ("name",)
ARGUMENT_KEYS = ("arguments", "parameters")
INNER_KEY = "function"
OTHER_KEYS = ("type", "id", "index")
"""What else may stand before the name of a call, where any object may be meant for the reader."""
MAX_NESTING = 8


def copy_value(source: Source, emit: Callable[[str], None]) -> Reading[bool]:
    """Pass on the characters of one value. False if the text ends within it.

    What is written is not checked, except for where it ends.
    """
    depth, quoted, escaped, begun = 0, False, False, False
    while True:
        text, end, done = source.text, None, False
        for at, char in enumerate(text):
            if quoted:
                if escaped:
                    escaped = False
                elif char == "\\":
                    escaped = True
                elif char == '"':
                    quoted = False
                    done = depth == 0
            elif char == '"' and (depth or not begun):
                quoted = True
            elif char in "{[" and (depth or not begun):
                depth += 1
            elif char in "}]" and depth:
                depth -= 1
                done = depth == 0
            elif not depth and char in '{[]},:" \t\r\n':
                end = at
                break
            begun = True
            if done:
                end = at + 1
                break
        if text:
            emit(source.take(len(text) if end is None else end))
        if end is not None:
            return True
        if source.ended:
            return begun and not depth and not quoted
        yield


def read_value(source: Source) -> Reading[tuple[str, Any]]:
    """The text of one value, and the value; None if it is no JSON."""
    parts: list[str] = []
    yield from copy_value(source, parts.append)
    text = "".join(parts)
    try:
        return text, json.loads(text)
    except (ValueError, RecursionError):
        return text, None


class _Recording(Source):
    """A source within an object that may turn out to be none of ours: ``taken`` is what it took."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.taken: list[str] = []

    @property
    def text(self) -> str:  # type: ignore[override]
        return self._source.text

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return self._source.ended

    def take(self, count: int) -> str:
        taken = self._source.take(count)
        self.taken.append(taken)
        return taken


class CallObject:
    """Reads one object that describes a call: ``{"name": ..., "arguments": ...}``, in any order.

    known: other names, or other members before the name, make it no call; None takes any. After
    ``read``, ``begun`` says whether there was a call, and if not, ``raw`` is what was read.
    """

    def __init__(self, out: Output, known: Collection[str] | None = None) -> None:
        self.begun = False
        self._out = out
        self._known = known
        self._waiting: list[str] = []
        self._has_arguments = False
        self._taken: list[str] = []

    @property
    def raw(self) -> str:
        """What was read."""
        return "".join(self._taken)

    def read(self, source: Source) -> Reading[bool]:
        """True if the object is well formed and complete, and is a call."""
        recording = _Recording(source)
        self._taken = recording.taken
        complete = yield from self._read(recording, MAX_NESTING)
        if complete and self.begun and not self._has_arguments:
            self._out.arguments("{}")
        return complete and self.begun

    def _read(self, source: Source, levels: int) -> Reading[bool]:
        if not levels or not (yield from source.accept("{")):
            return False
        while True:
            yield from source.space()
            if (yield from source.accept("}")):
                return True
            if (yield from source.accept(",")):
                continue
            if (yield from source.peek()) != '"':
                return False
            _, key = yield from read_value(source)
            yield from source.space()
            if not isinstance(key, str) or not (yield from source.accept(":")):
                return False
            yield from source.space()
            if not (yield from self._member(source, key, levels)):
                return False

    def _member(self, source: Source, key: str, levels: int) -> Reading[bool]:
        first = yield from source.peek()
        if key == INNER_KEY and first == "{" and not self.begun:
            return (yield from self._read(source, levels - 1))
        if key in NAME_KEYS and not self.begun:
            _, name = yield from read_value(source)
            if not isinstance(name, str) or not name:
                return False
            if self._known is not None and name not in self._known:
                return False
            self.begun = True
            self._out.call(name)
            for text in self._waiting:
                self._out.arguments(text)
            return True
        if key in ARGUMENT_KEYS and not self._has_arguments:
            self._has_arguments = True
            if first == '"':
                # Arguments that are JSON within a text.
                _, value = yield from read_value(source)
                if isinstance(value, str):
                    self._emit(value)
                return isinstance(value, str)
            if first == "n":
                text, _ = yield from read_value(source)
                if text == "null":
                    self._emit("{}")
                return text == "null"
            return (yield from copy_value(source, self._emit))
        if self._known is not None and not self.begun and key not in OTHER_KEYS:
            return False
        text, _ = yield from read_value(source)
        return bool(text)

    def _emit(self, text: str) -> None:
        if self.begun:
            self._out.arguments(text)
        else:
            self._waiting.append(text)


class Outcome(Enum):
    """How reading calls ended."""

    WHOLE = "whole"
    BROKEN = "broken"
    """A call has begun, but is malformed or cut off."""
    WORDS = "words"
    """It was no call, and is passed on as words."""


def read_calls(
    source: Source, out: Output, prefix: str, known: Collection[str] | None = None
) -> Reading[Outcome]:
    """Read one object, or a list of them, each of which is a call.

    prefix: what was read before and belongs to the words if this is no call.
    """
    listed = yield from source.accept("[")
    prefix += "[" if listed else ""
    begun = False
    while True:
        space = yield from source.space()
        call = CallObject(out, known)
        good = yield from call.read(source)
        if not call.begun and not begun:
            out.say(prefix + space + call.raw)
            return Outcome.WORDS
        if not good:
            return Outcome.BROKEN
        begun = True
        if not listed:
            return Outcome.WHOLE
        yield from source.space()
        if (yield from source.accept("]")):
            return Outcome.WHOLE
        if not (yield from source.accept(",")):
            return Outcome.BROKEN
