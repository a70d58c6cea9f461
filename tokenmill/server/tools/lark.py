"""Pieces of grammars, in the notation of llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenmill.server.tools.family import Function

JSON_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}
"""Space that is free may go on for ever, and models were trained with that of Python's JSON. oneOf is
anyOf: that exactly one holds can't be told by what may come next."""

DEFINITIONS = ("$defs", "definitions")


def quoted(text: str) -> str:
    """A text that must stand there word for word; an empty one is nothing."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def schema(value: Mapping[str, Any]) -> str:
    """JSON that meets a schema, with the spaces that Python writes."""
    return f"%json {json.dumps({**value, 'x-guidance': JSON_OPTIONS})}"


def arguments(function: Function) -> str:
    """The arguments of a function as JSON: an object, whatever else the schema says."""
    return schema({**function.parameters, "type": "object"})


def json_call(function: Function, name_key: str = "name", arguments_key: str = "arguments") -> str:
    """An object that describes a call of the function."""
    head = f"{{{json.dumps(name_key)}: {json.dumps(function.name)}, {json.dumps(arguments_key)}: "
    return f'{quoted(head)} {arguments(function)} "}}"'


def one_or_more(rule: str, separator: str, *, parallel: bool) -> str:
    """``rule``, or several with ``separator`` (an expression, or nothing) between them."""
    return f"{rule} ({separator} {rule})*" if parallel else rule


def alternatives(name: str, bodies: Sequence[str]) -> str:
    """A rule that is one of several, each with a rule of its own."""
    rules = [f"{name}_{number}: {body}" for number, body in enumerate(bodies)]
    choice = " | ".join(f"{name}_{number}" for number in range(len(bodies)))
    return "\n".join([f"{name}: {choice}", *rules])


def is_text(value: Any) -> bool:
    """Whether a schema takes texts only, of whatever content."""
    return isinstance(value, Mapping) and value.get("type") == "string" and "enum" not in value


def with_definitions(value: Any, whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema that can stand alone: with the definitions that it may refer to."""
    if not isinstance(value, Mapping):
        return {}
    return {**{name: whole[name] for name in DEFINITIONS if name in whole}, **value}


def tagged_parameters(name: str, function: Function, before: str, between: str, after: str) -> str:
    """Parameters written one after the other, each as ``before`` KEY ``between`` VALUE ``after``.

    Texts stand as they are, other values as JSON. The rule is called ``name``.
    """
    properties = function.parameters.get("properties")
    required = function.parameters.get("required") or ()
    rules, items = [], []
    for number, (key, value) in enumerate(properties.items() if properties else ()):
        rule = f"{name}_p{number}"
        head = quoted(f"{before}{key}{between}")
        if is_text(value):
            rules.append(f"{rule}: {head} {rule}_v")
            rules.append(f"{rule}_v[suffix={quoted(after)}]: /(?s:.*)/")
        elif isinstance(value, Mapping) and _texts(value):
            texts = " | ".join(quoted(text + after) for text in value["enum"])
            rules.append(f"{rule}: {head} ({texts})")
        else:
            inner = schema(with_definitions(value, function.parameters))
            rules.append(f"{rule}: {head} {inner} {quoted(after)}")
        items.append(rule if key in required else f"{rule}?")
    if not properties:
        free = f"{name}_any"
        rules += [
            f"{free}: {quoted(before)} /[A-Za-z_][A-Za-z0-9_]{{0,63}}/ {quoted(between)} {free}_v",
            f"{free}_v[suffix={quoted(after)}]: /(?s:.*)/",
        ]
        items.append(f"{free}*" if function.parameters.get("additionalProperties", True) else "")
    body = " ".join(items).strip() or '""'
    return "\n".join([f"{name}: {body}", *rules])


def _texts(value: Mapping[str, Any]) -> bool:
    enum = value.get("enum")
    return (
        isinstance(enum, list) and bool(enum) and all(isinstance(text, str) and text for text in enum)
    )


def regex(pattern: str) -> str:
    """A regular expression between slashes."""
    return "/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern) + "/"
