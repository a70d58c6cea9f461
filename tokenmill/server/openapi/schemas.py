"""Short ways to write JSON Schema (2020-12)."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
NULL: Schema = {"type": "null"}
ANYTHING: Schema = {}
OBJECT: Schema = {"type": "object"}
FUNCTION_NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,256}$"}


def record(properties: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object of an answer: ``properties`` are always there, ``optional`` sometimes, others never."""
    return {
        "type": "object",
        "properties": {**properties, **(optional or {})},
        "required": sorted(properties),
        "additionalProperties": False,
    }


def array(items: Schema, **limits: int) -> Schema:
    """A list."""
    return {"type": "array", "items": items, **limits}


def table(values: Schema) -> Schema:
    """An object whose keys are data."""
    return {"type": "object", "additionalProperties": values}


def nullable(schema: Schema) -> Schema:
    """That, or null."""
    if set(schema) == {"type"}:
        kinds = schema["type"]
        return {"type": [*([kinds] if isinstance(kinds, str) else kinds), "null"]}
    return {"anyOf": [schema, NULL]}


def constant(value: str) -> Schema:
    """Always the same text."""
    return {"const": value}


def choice(*values: str | None) -> Schema:
    """One of these."""
    return {"enum": list(values)}


def ref(name: str) -> Schema:
    """A schema of the document's components."""
    return {"$ref": f"#/components/schemas/{name}"}
