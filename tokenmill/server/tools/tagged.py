"""Values of arguments that stand between tags, without quotes, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenmill.server.tools.family import Function, Functions
from tokenmill.server.tools.output import Output
from tokenmill.server.tools.source import Reading, Source


class TaggedArguments:
    """The arguments of one call, as their members come in. name: of the tool."""

    def __init__(self, out: Output, functions: Functions, name: str) -> None:
        self._out = out
        self._function = functions.get(name)
        self._begun = False

    def read_member(self, source: Source, key: str, end: str, *, lines: bool) -> Reading[bool]:
        """Read a value up to the mark ``end``. lines: a line end after the opening and before the
        closing tag are no part of it. False if the text ends within it."""
        self._out.arguments(f"{', ' if self._begun else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        self._begun = True
        if lines:
            yield from source.accept("\n")
        kinds = _kinds(self._function, key)
        if kinds == {"string"}:
            return (yield from self._read_text(source, end, lines))
        text, mark = yield from source.text_until((end,))
        if mark is None:
            return False
        if lines:
            text = text.removesuffix("\n")
        self._out.arguments(_value(text, kinds))
        return True

    def end(self) -> None:
        """All members were read."""
        self._out.arguments("}" if self._begun else "{}")

    def _read_text(self, source: Source, end: str, lines: bool) -> Reading[bool]:
        held = ""

        def emit(text: str) -> None:
            nonlocal held
            text = held + text
            held = "\n" if lines and text.endswith("\n") else ""
            self._out.arguments(json.dumps(text[: len(text) - len(held)], ensure_ascii=False)[1:-1])

        self._out.arguments('"')
        mark = yield from source.until((end,), emit)
        if mark is None:
            self._out.arguments(json.dumps(held)[1:-1])
            return False
        self._out.arguments('"')
        return True


def _kinds(function: Function | None, key: str) -> set[str]:
    """Types that the schema allows; none if it does not say."""
    properties = function.parameters.get("properties") if function is not None else None
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    return _kinds_of(schema) if isinstance(schema, Mapping) else set()


def _kinds_of(schema: Mapping[str, Any]) -> set[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {one for one in kind if isinstance(one, str)}
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return {"string"}
    for name in ("anyOf", "oneOf"):
        options = schema.get(name)
        if isinstance(options, list):
            return {kind for one in options if isinstance(one, Mapping) for kind in _kinds_of(one)}
    return set()


def _value(text: str, kinds: set[str]) -> str:
    """JSON if the text is JSON of an allowed type, else a text."""
    stripped = text.strip()
    if stripped in ("True", "False", "None"):
        # Python's words, which some models write.
        stripped = {"True": "true", "False": "false", "None": "null"}[stripped]
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if isinstance(value, str) and "string" in kinds:
        # Quotes that belong to the text.
        return json.dumps(text, ensure_ascii=False)
    if "string" in kinds and _kind(value) not in kinds:
        return json.dumps(text, ensure_ascii=False)
    return stripped


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "object" if isinstance(value, dict) else "array"
