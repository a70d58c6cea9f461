"""How a model writes its answers: thoughts, words and calls of tools."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass

from tokenmill.server.reasoning import Reasoning, choose_reasoning
from tokenmill.server.tools.families import choose_family
from tokenmill.server.tools.family import Family, Functions
from tokenmill.server.tools.harmony import CALL, CHANNEL, END, MESSAGE, RETURN, START, THOUGHTS, Harmony
from tokenmill.server.tools.output import Output, Part
from tokenmill.server.tools.source import Reading, Source


@dataclass(frozen=True)
class AnswerFormat:
    """Of one model. reasoning: None if it does not think, or if the family's parser knows."""

    family: Family
    reasoning: Reasoning | None

    @property
    def thoughts(self) -> Reasoning | None:
        """Marks around the first thoughts."""
        return Reasoning(CHANNEL + THOUGHTS, END) if self.has_channels else self.reasoning

    @property
    def has_channels(self) -> bool:
        """Whether even plain answers have to be parsed."""
        return isinstance(self.family, Harmony)

    def marks(self, *, calls: bool) -> Collection[str]:
        """Special tokens that must be seen. calls: whether tools may be called."""
        found = set(self.family.marks) if calls or self.has_channels else set()
        if self.reasoning is not None:
            found |= {self.reasoning.begin, self.reasoning.end}
        return found


def answer_format(templates: Mapping[str, str], tool_parser: str | None = None) -> AnswerFormat:
    """The format of a model with these chat templates.

    tool_parser: name of a family, if the templates don't tell. Raises ConfigError if there is none.
    """
    family = choose_family(templates, tool_parser)
    reasoning = None if isinstance(family, Harmony) else choose_reasoning(templates)
    return AnswerFormat(family, reasoning)


@dataclass(frozen=True)
class Begun:
    """How the prompt ends. thinking: within thoughts. header: of the message that it is within, for
    models whose messages have headers."""

    thinking: bool = False
    header: str | None = None


def how_begun(form: AnswerFormat, prompt: str, continued: str | None) -> Begun:
    """What the end of a prompt says. continued: the last message, if the answer goes on with it."""
    if form.has_channels:
        header, within, body = prompt[max(prompt.rfind(START), 0) :].partition(MESSAGE)
        is_open = within and not any(mark in body for mark in (END, RETURN, CALL))
        return Begun(header=header if is_open else None)
    thinking = form.reasoning is not None and form.reasoning.is_open(prompt, continued)
    return Begun(thinking=thinking)


class AnswerReader:
    """Reads one answer as it comes in.

    functions: those that may be called; None leaves calls unread.
    """

    def __init__(self, form: AnswerFormat, begun: Begun, functions: Functions | None) -> None:
        self._form = form
        self._begun = begun
        self._functions = functions
        self._source = Source()
        self._out = Output()
        self._reading: Generator[None, None, None] | None = self._read()

    def push(self, text: str) -> list[Part]:
        """What these words make certain."""
        self._source.feed(text)
        self._go_on()
        return self._out.take()

    def finish(self) -> list[Part]:
        """What is left."""
        self._source.end()
        self._go_on()
        self._out.end()
        return self._out.take()

    def _go_on(self) -> None:
        if self._reading is not None and next(self._reading, self) is self:
            self._reading = None

    def _read(self) -> Reading[None]:
        family, source, out = self._form.family, self._source, self._out
        if isinstance(family, Harmony) and self._begun.header is not None:
            yield from family.parse_body(source, out, self._begun.header)
        if self._form.reasoning is not None:
            yield from self._form.reasoning.parse(source, out, opened=self._begun.thinking)
        if self._functions is not None or self._form.has_channels:
            yield from family.parse(source, out, self._functions or {})
        while True:
            if source.text:
                out.say(source.take(len(source.text)))
            if source.ended:
                return
            yield


class ThoughtCounter:
    """Counts the tokens of thoughts, which end where ``reasoning.end`` is complete.

    opened: the prompt has begun them.
    """

    def __init__(self, reasoning: Reasoning, *, opened: bool) -> None:
        self._count = 0
        self._begin = None if opened else reasoning.begin.encode()
        self._end = reasoning.end.encode()
        self._tail = b""
        self._ended = False

    def add(self, token: bytes) -> None:
        """The next token of the answer."""
        if self._ended:
            return
        self._count += 1
        self._tail += token
        if self._begin is not None:
            text = self._tail.lstrip()
            if text.startswith(self._begin):
                self._begin = None
            elif not self._begin.startswith(text):
                self._ended = True
        if self._begin is None:
            self._ended = self._end in self._tail
            self._tail = self._tail[-len(self._end) :]

    @property
    def tokens(self) -> int:
        """How many there are so far."""
        return 0 if self._begin is not None else self._count
