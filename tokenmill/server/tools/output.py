"""What is found in a model's words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thought:
    """A piece of what the model thinks."""

    text: str


@dataclass(frozen=True)
class Said:
    """A piece of what it says."""

    text: str


@dataclass(frozen=True)
class Call:
    """It begins to call a tool. call_id: if the model itself gives one."""

    name: str
    call_id: str | None = None


@dataclass(frozen=True)
class Arguments:
    """A piece of the JSON of the latest call."""

    text: str


Part = Thought | Said | Call | Arguments


class Output:
    """Parts, in order. White space around thoughts and calls is left out; between words it stays."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._held = ""
        self._kind: type[Thought] | type[Said] | None = None
        self._bare = False

    def think(self, text: str) -> None:
        """More of a thought."""
        self._write(Thought, text)

    def say(self, text: str) -> None:
        """More of what is said."""
        self._write(Said, text)

    def call(self, name: str, call_id: str | None = None) -> None:
        """A tool is called."""
        self._held, self._kind, self._bare = "", None, True
        self._parts.append(Call(name, call_id))

    def arguments(self, text: str) -> None:
        """More of the arguments of the latest call."""
        if text:
            self._parts.append(Arguments(text))

    def take(self) -> list[Part]:
        """What is new."""
        parts, self._parts = self._parts, []
        return parts

    def end(self) -> None:
        """Nothing more comes."""
        if self._held and self._kind is Said:
            self._parts.append(Said(self._held))
        self._held = ""

    def _write(self, kind: type[Thought] | type[Said], text: str) -> None:
        if kind is not self._kind:
            # Thoughts begin without space, and so does whatever follows a thought or a call.
            self._bare = self._bare or kind is Thought or self._kind is Thought
            self._held, self._kind = "", kind
        if self._bare:
            text = text.lstrip()
            self._bare = not text
        text = self._held + text
        shown = text.rstrip()
        self._held = text[len(shown) :]
        if shown:
            self._parts.append(kind(shown))
