"""Kimi K2.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}
    <|tool_call_end|><|tool_calls_section_end|>

(without the line end). The id of a call is what stands before its arguments.

Facts: https://github.com/MoonshotAI/Kimi-K2/blob/main/docs/tool_call_guidance.md
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenmill.server.tools.family import Family, Function, Functions, Mark
from tokenmill.server.tools.json_reading import copy_value
from tokenmill.server.tools.lark import alternatives, arguments, quoted
from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source, discard

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
CALL_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?$", re.DOTALL)


class Kimi(Family):
    """See above."""

    name = "kimi_k2"
    marks = (BEGIN, END, CALL, ARGUMENTS, CALL_END)
    trigger = BEGIN

    @classmethod
    def recognises(cls, template: str) -> bool:
        """See Family."""
        return BEGIN in template

    def parse(self, source: Source, out: Output, functions: Functions) -> Reading[None]:
        """See Family."""
        while (yield from source.until((BEGIN,), out.say)):
            while (yield from source.until((CALL, END), discard)) == CALL:
                head, mark = yield from source.text_until((ARGUMENTS,))
                found = CALL_ID.match(head.strip())
                if mark is None or found is None:
                    out.say(CALL + head)
                    break
                out.call(found[1], head.strip())
                yield from source.space()
                yield from copy_value(source, out.arguments)
                yield from source.until((CALL_END,), discard)

    def grammar(self, functions: Sequence[Function], mark: Mark, *, parallel: bool) -> str:
        """See Family."""
        bodies = [
            f"{mark(CALL)} {quoted(f'functions.{function.name}:')} /[0-9]{{1,3}}/ {mark(ARGUMENTS)} "
            f"{arguments(function)} {mark(CALL_END)}"
            for function in functions
        ]
        calls = "call call*" if parallel else "call"
        return "\n".join([f"calls: trigger {calls} {mark(END)}", alternatives("call", bodies)])
