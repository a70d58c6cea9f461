"""DeepSeek V3, R1 and V3.1.

V3 and R1:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f
    ```json
    {"a": 1}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>

(without the last line end).

Facts: chat templates of the models.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.server.tools.family import Family, Function, Functions, Mark
from tokenmill.server.tools.json_reading import copy_value
from tokenmill.server.tools.lark import alternatives, arguments, quoted
from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source, discard

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
KIND = "function"
FENCE, FENCE_END = "```json\n", "\n```"


class DeepSeek(Family):
    """See above."""

    name = "deepseek"
    marks = (BEGIN, END, CALL, CALL_END, SEPARATOR)
    trigger = BEGIN

    @classmethod
    def recognises(cls, template: str) -> bool:
        """See Family."""
        return BEGIN in template

    def parse(self, source: Source, out: Output, functions: Functions) -> Reading[None]:
        """See Family."""
        while (yield from source.until((BEGIN, CALL), out.say)):
            while True:
                yield from source.space()
                yield from source.accept(CALL)
                head, mark = yield from source.text_until((SEPARATOR, END))
                if mark is None:
                    out.say(head)
                    return
                if mark == END:
                    break
                yield from self._call(source, out, head.strip())
                yield from source.until((CALL_END,), discard)
                yield from source.space()
                if (yield from source.accept(END)) or source.ended:
                    break

    def _call(self, source: Source, out: Output, head: str) -> Reading[None]:
        yield from source.space()
        if head == KIND and (yield from source.peek()) != "{":
            name, mark = yield from source.text_until(("\n",))
            if mark is None:
                return
            out.call(name.strip())
            yield from source.space()
            yield from source.accept(FENCE.strip())
            yield from source.space()
        else:
            out.call(head)
        yield from copy_value(source, out.arguments)

    def grammar(self, functions: Sequence[Function], mark: Mark, *, parallel: bool) -> str:
        """See Family."""
        fenced = FENCE.strip() in self.template
        bodies = []
        for function in functions:
            if fenced:
                name = f"{function.name}\n"
                head = f"{quoted(KIND)} {mark(SEPARATOR)} {quoted(name + FENCE)}"
                body = f"{head} {arguments(function)} {quoted(FENCE_END)}"
            else:
                body = f"{quoted(function.name)} {mark(SEPARATOR)} {arguments(function)}"
            bodies.append(f"{mark(CALL)} {body} {mark(CALL_END)}")
        between = '"\\n"' if fenced else ""
        more = f"({between} call)*" if parallel else ""
        return "\n".join([f"calls: trigger call {more} {mark(END)}", alternatives("call", bodies)])
