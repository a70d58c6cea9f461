"""Llama 3.2 and 4, and others that write calls as Python does.

    [f(a=1, b="x"), g()]

Facts: https://www.llama.com/docs/model-cards-and-prompt-formats/llama4
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenmill.server.tools.family import Family, Function, Functions, Mark
from tokenmill.server.tools.lark import alternatives, one_or_more, quoted
from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source, discard

BEGIN, END, TAG = "<|python_start|>", "<|python_end|>", "<|python_tag|>"
EXAMPLE = re.compile(r"\[\w+\(\w+=")
"""Templates show how a call looks."""

JSON_WORDS = {"true": True, "false": False, "null": None}

PYTHON_VALUE = r"""
py_value: py_text | py_number | "True" | "False" | "None" | py_list | py_dict
py_text: %json {"type": "string"}
py_number: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?/
py_list: "[" (py_value (", " py_value)*)? "]"
py_argument: /[A-Za-z_][A-Za-z0-9_]{0,63}/ "=" py_value
py_dict: "{" (py_text ": " py_value (", " py_text ": " py_value)*)? "}"
"""


class LlamaPythonic(Family):
    """See above."""

    name = "pythonic"
    marks = (BEGIN, END, TAG)
    trigger = None
    any_words = r"/[^{\[\s](?s:.*)/"

    @classmethod
    def recognises(cls, template: str) -> bool:
        """See Family."""
        return BEGIN in template or bool(EXAMPLE.search(template))

    def parse(self, source: Source, out: Output, functions: Functions) -> Reading[None]:
        """See Family."""
        prefix = yield from source.space()
        for tag in (BEGIN, TAG):
            if (yield from source.accept(tag)):
                prefix += yield from source.space()
        if (yield from source.accept("[")):
            prefix += "["
            while True:
                prefix += yield from source.space()
                name, mark = yield from _name(source)
                if mark != "(" or name not in functions:
                    out.say(prefix + name + (mark or ""))
                    break
                prefix = ""
                out.call(name)
                if not (yield from _arguments(source, out)):
                    yield from source.until((END,), discard)
                    return
                yield from source.space()
                if not (yield from source.accept(",")):
                    yield from source.accept("]")
                    yield from source.space()
                    yield from source.accept(END)
                    break
        else:
            out.say(prefix)
        while (yield from source.until((BEGIN, END, TAG), out.say)):
            pass

    def grammar(self, functions: Sequence[Function], mark: Mark, *, parallel: bool) -> str:
        """See Family."""
        bodies = [f'{quoted(f.name + "(")} {_parameters(f)} ")"' for f in functions]
        calls = one_or_more("call", '", "', parallel=parallel)
        return "\n".join([f'calls: "[" {calls} "]"', alternatives("call", bodies), PYTHON_VALUE])


def _name(source: Source) -> Reading[tuple[str, str | None]]:
    """An identifier, and what follows it."""
    taken = ""
    while True:
        char = yield from source.peek()
        if not char:
            return taken, None
        if not (char.isalnum() or char in "_.-"):
            return taken, source.take(1)
        taken += source.take(1)


def _arguments(source: Source, out: Output) -> Reading[bool]:
    """Keyword arguments up to the closing bracket, as JSON. False if they are malformed or cut off."""
    opened = "{"
    while True:
        yield from source.space()
        if (yield from source.accept(")")):
            out.arguments("{}" if opened == "{" else "}")
            return True
        key, mark = yield from _name(source)
        if not key or mark != "=":
            return False
        text = yield from _literal(source)
        if source.ended and not source.text:
            return False
        out.arguments(f"{opened}{json.dumps(key)}: {_as_json(text)}")
        opened = ", "
        if (yield from source.accept(",")):
            continue


def _literal(source: Source) -> Reading[str]:
    """The text of a value, up to the comma or bracket after it."""
    parts: list[str] = []
    depth, quote, escaped = 0, "", False
    while True:
        for at, char in enumerate(source.text):
            if quote:
                if escaped:
                    escaped = False
                elif char == "\\":
                    escaped = True
                elif char == quote:
                    quote = ""
            elif char in "\"'":
                quote = char
            elif char in "([{":
                depth += 1
            elif char in ")]}" and depth:
                depth -= 1
            elif not depth and char in "),":
                parts.append(source.take(at))
                return "".join(parts)
        parts.append(source.take(len(source.text)))
        if source.ended:
            return "".join(parts)
        yield


def _as_json(text: str) -> str:
    """A Python literal as JSON; whatever is none, as a text."""
    text = text.strip()
    value: Any = text
    if text in JSON_WORDS:
        value = JSON_WORDS[text]
    else:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = text
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(text, ensure_ascii=False)


def _parameters(function: Function) -> str:
    """Keyword arguments: those that are required first, then any of the others."""
    properties: Mapping[str, Any] = function.parameters.get("properties") or {}
    required = function.parameters.get("required") or ()
    if not properties and function.parameters.get("additionalProperties", True):
        return '(py_argument (", " py_argument)*)?'
    needed = [_parameter(key, properties[key]) for key in properties if key in required]
    others = [_parameter(key, properties[key]) for key in properties if key not in required]
    if needed:
        return ' ", " '.join(needed) + "".join(f' (", " {one})?' for one in others)
    # The first of those that are there has no comma before it.
    options = [
        one + "".join(f' (", " {other})?' for other in others[number + 1 :])
        for number, one in enumerate(others)
    ]
    return f"({' | '.join(options)})?" if options else ""


def _python(value: Any) -> str:
    """A value as models write it."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _parameter(key: str, value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(value, Mapping) and isinstance(value.get("enum"), list):
        texts = " | ".join(quoted(_python(one)) for one in value["enum"])
        return f"{quoted(key + '=')} ({texts})"
    if kind in ("string", "integer", "number"):
        plain = {name: item for name, item in value.items() if name not in ("default", "description")}
        return f"{quoted(key + '=')} %json {json.dumps(plain)}"
    if kind == "boolean":
        return f'{quoted(key + "=")} ("True" | "False")'
    return f"{quoted(key + '=')} py_value"
