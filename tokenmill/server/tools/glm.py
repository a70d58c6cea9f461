"""GLM 4.5 to 4.7.

    <tool_call>f
    <arg_key>a</arg_key>
    <arg_value>1</arg_value>
    </tool_call>

4.7 writes the same without line ends.

Facts: chat templates of the models.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.server.tools.family import Family, Function, Functions, Mark
from tokenmill.server.tools.lark import alternatives, quoted, tagged_parameters
from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source, discard
from tokenmill.server.tools.tagged import TaggedArguments

BEGIN, END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"


class Glm(Family):
    """See above."""

    name = "glm"
    marks = (BEGIN, END, KEY, KEY_END, VALUE, VALUE_END)
    trigger = BEGIN

    @classmethod
    def recognises(cls, template: str) -> bool:
        """See Family."""
        return KEY in template and VALUE in template

    def parse(self, source: Source, out: Output, functions: Functions) -> Reading[None]:
        """See Family."""
        while (yield from source.until((BEGIN,), out.say)):
            name, mark = yield from source.text_until((KEY, END))
            if mark is None:
                out.say(BEGIN + name)
                return
            out.call(name.strip())
            arguments = TaggedArguments(out, functions, name.strip())
            while mark == KEY:
                key, closed = yield from source.text_until((KEY_END,))
                opened = yield from source.until((VALUE, END), discard)
                if closed is None or opened is None:
                    return
                if opened == END:
                    break
                if not (yield from arguments.read_member(source, key.strip(), VALUE_END, lines=False)):
                    return
                mark = yield from source.until((KEY, END), discard)
            if mark is not None:
                arguments.end()

    def grammar(self, functions: Sequence[Function], mark: Mark, *, parallel: bool) -> str:
        """See Family."""
        line = "\n" if f"\n{KEY}" in self.template or f"\\n{KEY}" in self.template else ""
        bodies, rules = [], []
        for number, function in enumerate(functions):
            name = f"args_{number}"
            bodies.append(f"{quoted(function.name + line)} {name} {mark(END)}")
            rules.append(
                tagged_parameters(name, function, KEY, f"{KEY_END}{line}{VALUE}", f"{VALUE_END}{line}")
            )
        more = f"({quoted(line)} {mark(BEGIN)} call)*" if parallel else ""
        return "\n".join([f"calls: trigger call {more}", alternatives("call", bodies), *rules])
