"""Qwen3-Coder, and others that write calls as tags.

    <tool_call>
    <function=f>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

Facts: chat template of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.server.tools.family import Family, Function, Functions, Mark
from tokenmill.server.tools.lark import alternatives, quoted, tagged_parameters
from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source, discard
from tokenmill.server.tools.tagged import TaggedArguments

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class Qwen3Coder(Family):
    """See above."""

    name = "qwen3_coder"
    marks = (BEGIN, END)
    trigger = BEGIN

    @classmethod
    def recognises(cls, template: str) -> bool:
        """See Family."""
        return FUNCTION in template and PARAMETER in template

    def parse(self, source: Source, out: Output, functions: Functions) -> Reading[None]:
        """See Family."""
        # Models forget the outer tag now and then.
        while mark := (yield from source.until((BEGIN, FUNCTION), out.say)):
            if mark == BEGIN:
                space = yield from source.space()
                if not (yield from source.accept(FUNCTION)):
                    out.say(BEGIN + space)
                    continue
            name, mark = yield from source.text_until((">",))
            if mark is None:
                out.say(FUNCTION + name)
                return
            out.call(name.strip())
            yield from self._arguments(source, TaggedArguments(out, functions, name.strip()))
            yield from source.space()
            yield from source.accept(END)

    def _arguments(self, source: Source, arguments: TaggedArguments) -> Reading[None]:
        while True:
            mark = yield from source.until((PARAMETER, FUNCTION_END, END), discard)
            if mark is None:
                return
            if mark != PARAMETER:
                arguments.end()
                return
            key, closed = yield from source.text_until((">",))
            if closed is None:
                return
            if not (yield from arguments.read_member(source, key.strip(), PARAMETER_END, lines=True)):
                return

    def grammar(self, functions: Sequence[Function], mark: Mark, *, parallel: bool) -> str:
        """See Family."""
        bodies, rules = [], []
        for number, function in enumerate(functions):
            name = f"args_{number}"
            head = quoted(f"\n{FUNCTION}{function.name}>\n")
            tail = quoted(f"{FUNCTION_END}\n")
            bodies.append(f"{head} {name} {tail} {mark(END)}")
            rules.append(tagged_parameters(name, function, PARAMETER, ">\n", f"\n{PARAMETER_END}\n"))
        more = f'("\\n" {mark(BEGIN)} call)*' if parallel else ""
        return "\n".join([f"calls: trigger call {more}", alternatives("call", bodies), *rules])
