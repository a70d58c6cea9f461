"""Mistral's models, in the forms of their successive tokenizers.

    [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]
    [TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}
    [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}

Facts: https://github.com/mistralai/mistral-common, chat templates of the models.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence

from tokenmill.server.tools.family import Family, Function, Functions, Mark
from tokenmill.server.tools.json_reading import Outcome, copy_value, read_calls
from tokenmill.server.tools.lark import alternatives, arguments, json_call, one_or_more, quoted
from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source, discard

BEGIN, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
ID_LENGTH = 9
"""Templates refuse ids of any other length."""


class Mistral(Family):
    """See above."""

    name = "mistral"
    marks = (BEGIN, ID, ARGUMENTS)
    trigger = BEGIN

    @classmethod
    def recognises(cls, template: str) -> bool:
        """See Family."""
        return BEGIN in template

    def parse(self, source: Source, out: Output, functions: Functions) -> Reading[None]:
        """See Family."""
        while (yield from source.until((BEGIN,), out.say)):
            space = yield from source.space()
            if (yield from source.peek()) in ("[", "{"):
                outcome = yield from read_calls(source, out, BEGIN + space)
                if outcome is Outcome.BROKEN:
                    yield from source.until((BEGIN,), discard)
                continue
            name, mark = yield from source.text_until((ID, ARGUMENTS, "{"))
            if mark is None:
                out.say(BEGIN + space + name)
                return
            call_id = None
            if mark == ID:
                call_id, mark = yield from source.text_until((ARGUMENTS, "{"))
            out.call(name.strip(), (call_id or "").strip() or None)
            if mark == "{":
                source.put_back("{")
            yield from source.space()
            yield from copy_value(source, out.arguments)

    def grammar(self, functions: Sequence[Function], mark: Mark, *, parallel: bool) -> str:
        """See Family."""
        if ARGUMENTS in self.template:
            bodies = [f"{quoted(f.name)} {mark(ARGUMENTS)} {arguments(f)}" for f in functions]
            more = f"({mark(BEGIN)} call)*" if parallel else ""
            return "\n".join([f"calls: trigger call {more}", alternatives("call", bodies)])
        calls = one_or_more("call", '", "', parallel=parallel)
        bodies = [json_call(function) for function in functions]
        return "\n".join([f'calls: trigger "[" {calls} "]"', alternatives("call", bodies)])

    def call_id(self) -> str:
        """See Family."""
        letters = string.ascii_letters + string.digits
        return "".join(secrets.choice(letters) for _ in range(ID_LENGTH))
