"""Hermes 2 and 3, Qwen 2.5 and 3, SmolLM2 and many others: JSON between tags.

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

Small ones forget the tags, or write others: an answer that begins with a call of a known tool is one.

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
WRAPPERS = (("```json", "```"), ("<tools>", "</tools>"))


class Hermes(Family):
    """See above."""

    name = "hermes"
    marks = (BEGIN, END)
    trigger = BEGIN
    any_words = r"/\s*([^{\s](?s:.*))?/"

    @classmethod
    def recognises(cls, template: str) -> bool:
        """See Family."""
        return BEGIN in template

    def parse(self, source: Source, out: Output, functions: Functions) -> Reading[None]:
        """See Family."""
        yield from self._bare_calls(source, out, functions)
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

    def _bare_calls(self, source: Source, out: Output, functions: Functions) -> Reading[None]:
        prefix = yield from source.space()
        end = ""
        for opening, closing in WRAPPERS:
            if (yield from source.accept(opening)):
                end = closing
                prefix += opening + (yield from source.space())
                break
        if (yield from source.peek()) != "{":
            out.say(prefix)
            return
        outcome = Outcome.WHOLE
        while outcome is Outcome.WHOLE and (yield from source.peek()) == "{":
            outcome = yield from read_calls(source, out, prefix, functions)
            prefix = ""
            yield from source.space()
        if outcome is Outcome.WHOLE:
            yield from source.accept(end)
        elif outcome is Outcome.BROKEN:
            yield from source.until((BEGIN,), discard)

    def grammar(self, functions: Sequence[Function], mark: Mark, *, parallel: bool) -> str:
        """See Family."""
        bodies = [f'"\\n" {json_call(function)} "\\n" {mark(END)}' for function in functions]
        more = f'("\\n" {mark(BEGIN)} call)*' if parallel else ""
        return "\n".join([f"calls: trigger call {more}", alternatives("call", bodies)])

    def words(self, form: str | None, functions: Sequence[Function], mark: Mark) -> str:
        """See Family. What begins like a call without tags must be one."""
        if form is not None or not functions:
            return super().words(form, functions, mark)
        bare = alternatives("bare", [json_call(function) for function in functions])
        return "\n".join([f"words: {self.any_words} | bare", bare])
