"""Llama 3.1 to 3.3: the answer is an object.

    {"name": "f", "parameters": {"a": 1}}

``<|python_tag|>`` may stand before it, and ``;`` between several.

Facts: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.server.tools.family import Family, Function, Functions, Mark
from tokenmill.server.tools.json_reading import Outcome, read_calls
from tokenmill.server.tools.lark import alternatives, json_call, one_or_more
from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source, discard

TAG = "<|python_tag|>"


class LlamaJson(Family):
    """See above."""

    name = "llama3_json"
    marks = (TAG,)
    trigger = None
    any_words = r"/[^{\[\s](?s:.*)/"

    @classmethod
    def recognises(cls, template: str) -> bool:
        """See Family."""
        return '"parameters": dictionary of argument name' in template or TAG in template

    def parse(self, source: Source, out: Output, functions: Functions) -> Reading[None]:
        """See Family."""
        prefix = yield from source.space()
        if (yield from source.accept(TAG)):
            prefix += yield from source.space()
        # An answer may be an object that is no call, so names must be known.
        while (yield from source.peek()) == "{":
            outcome = yield from read_calls(source, out, prefix, functions)
            if outcome is Outcome.BROKEN:
                yield from source.until((TAG,), discard)
            if outcome is not Outcome.WHOLE:
                break
            prefix = yield from source.space()
            if (yield from source.accept(";")):
                prefix += ";" + (yield from source.space())
        else:
            if prefix.strip() != ";":
                out.say(prefix)
        while (yield from source.until((TAG,), out.say)):
            pass

    def grammar(self, functions: Sequence[Function], mark: Mark, *, parallel: bool) -> str:
        """See Family."""
        bodies = [json_call(function, arguments_key="parameters") for function in functions]
        calls = one_or_more("call", '"; "', parallel=parallel)
        return "\n".join([f"calls: {calls}", alternatives("call", bodies)])
