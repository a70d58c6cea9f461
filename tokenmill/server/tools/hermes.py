"""Hermes 2 and 3, Qwen 2.5 and 3, SmolLM2 and many others: JSON between tags.

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

Facts: https://github.com/NousResearch/Hermes-Function-Calling, chat templates of the models.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.server.tools.family import Family, Function, Functions, Mark
from tokenmill.server.tools.json_reading import Outcome, read_calls
from tokenmill.server.tools.lark import alternatives, json_call
from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source, discard

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes(Family):
    """See above."""

    name = "hermes"
    marks = (BEGIN, END)
    trigger = BEGIN

    @classmethod
    def recognises(cls, template: str) -> bool:
        """See Family."""
        return BEGIN in template

    def parse(self, source: Source, out: Output, functions: Functions) -> Reading[None]:
        """See Family."""
        while (yield from source.until((BEGIN,), out.say)):
            space = yield from source.space()
            outcome = yield from read_calls(source, out, BEGIN + space)
            while outcome is Outcome.WHOLE:
                # Some write several objects between two tags.
                space = yield from source.space()
                if (yield from source.peek()) != "{":
                    break
                outcome = yield from read_calls(source, out, space)
            if outcome is not Outcome.WORDS:
                yield from source.until((END,), discard)

    def grammar(self, functions: Sequence[Function], mark: Mark, *, parallel: bool) -> str:
        """See Family."""
        bodies = [f'"\\n" {json_call(function)} "\\n" {mark(END)}' for function in functions]
        more = f'("\\n" {mark(BEGIN)} call)*' if parallel else ""
        return "\n".join([f"calls: trigger call {more}", alternatives("call", bodies)])
