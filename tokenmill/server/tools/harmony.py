"""gpt-oss: every message says to which channel and to whom it goes.

    <|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>commentary to=functions.f
    <|constrain|>json<|message|>{"a": 1}<|call|>

(without the line end); what is said goes to the channel ``final``.

Facts: https://developers.openai.com/cookbook/articles/openai-harmony
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenmill.server.tools.family import Family, Function, Functions, Mark
from tokenmill.server.tools.lark import alternatives, arguments, quoted
from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
THOUGHTS, SIDE, FINAL = "analysis", "commentary", "final"
RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


class Harmony(Family):
    """See above."""

    name = "harmony"
    marks = (START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALL)
    trigger = None

    @classmethod
    def recognises(cls, template: str) -> bool:
        """See Family."""
        return CHANNEL in template and MESSAGE in template

    def parse(self, source: Source, out: Output, functions: Functions) -> Reading[None]:
        """See Family."""
        while True:
            header, mark = yield from source.text_until((MESSAGE,))
            if mark is None:
                if CHANNEL not in header and START not in header:
                    out.say(header)
                return
            yield from self.parse_body(source, out, header)
            if source.ended and not source.text:
                return

    def parse_body(self, source: Source, out: Output, header: str) -> Reading[None]:
        """A message without its header, up to its end."""
        channel = CHANNEL_NAME.search(header)
        recipient = RECIPIENT.search(header)
        emit = out.say
        if recipient is not None:
            out.call(recipient[1])
            emit = out.arguments
        elif channel is not None and channel[1] == THOUGHTS:
            emit = out.think
        yield from source.until((END, RETURN, CALL, START), emit)

    def grammar(self, functions: Sequence[Function], mark: Mark, *, parallel: bool) -> str:
        """See Family. Its calls come one at a time: the turn ends with each."""
        bodies = [
            f"{mark(CHANNEL)} {quoted(f'{SIDE} to=functions.{function.name} ')} {mark(CONSTRAIN)} "
            f'"json" {mark(MESSAGE)} {arguments(function)}'
            for function in functions
        ]
        rules = [_thoughts("before_calls", mark), "calls: before_calls? call"]
        return "\n".join([*rules, alternatives("call", bodies)])

    def words(self, form: str | None, functions: Sequence[Function], mark: Mark) -> str:
        """See Family."""
        final = f"{mark(CHANNEL)} {quoted(FINAL)} {mark(MESSAGE)} {form or self.any_words}"
        return "\n".join([_thoughts("before_words", mark), f"words: before_words? {final}"])


def _thoughts(name: str, mark: Mark) -> str:
    """A rule for thoughts and the beginning of what follows them."""
    message = f"{mark(CHANNEL)} {quoted(THOUGHTS)} {mark(MESSAGE)} /(?s:.*)/ {mark(END)}"
    return f'{name}: {message} {mark(START)} "assistant"'
