"""One endpoint of the document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenmill.server.fields import Fields
from tokenmill.server.openapi.observe import Seen, observe
from tokenmill.server.openapi.schemas import TEXT, Schema, nullable, ref

COMMON_ERRORS = {
    400: "The request is invalid; the error names the field.",
    404: "There is no such model or path.",
    408: "The body did not arrive in time.",
    413: "The body is larger than the server accepts.",
    429: "Too many requests wait already; Retry-After says when to come back.",
    500: "A bug of the server; its log says more.",
    503: "The server is stopping, asleep or dead; Retry-After says when to come back, if ever.",
    504: "The answer took longer than the server gives a request.",
}


@dataclass(frozen=True)
class Body:
    """What a request may hold.

    read: the endpoint's reader. minimal: the least that it accepts, so each of its fields is required,
    unless ``required`` says otherwise because another field may stand in for it.
    further: other bodies that it accepts, where it reads fields that it does not read of the first.
    known: what can be said of fields beyond their type, by name. Fields of nested objects are named
    ``outer.inner``.
    """

    read: Callable[[Fields], object]
    minimal: Mapping[str, Any]
    known: Mapping[str, Schema]
    further: Sequence[Mapping[str, Any]] = ()
    required: Sequence[str] | None = None

    def schema(self) -> Schema:
        """As JSON Schema. Raises KeyError for a field whose type only ``known`` could tell."""
        return self._object(observe(self.read, (self.minimal, *self.further)), "")

    def _object(self, seen: Seen, where: str) -> Schema:
        always = self.minimal if self.required is None else self.required
        required = [] if where else list(always)
        properties = {
            name: self._field(seen, name, f"{where}{name}", name in required)
            for name in seen.schemas
            if name not in seen.refused and name not in seen.only
        }
        properties |= {name: {"enum": values} for name, values in seen.only.items()}
        schema: Schema = {"type": "object", "properties": dict(sorted(properties.items()))}
        if required:
            schema["required"] = required
        if seen.refused:
            schema["description"] = f"Must not be set: {', '.join(sorted(seen.refused))}."
        return schema

    def _field(self, seen: Seen, name: str, full: str, required: bool) -> Schema:
        inner = seen.sections.get(name)
        schema = seen.schemas[name] if inner is None else self._object(inner, f"{full}.")
        schema = {**schema, **(self.known.get(full, {}) if schema else self.known[full])}
        if required:
            return schema
        description = {key: schema.pop(key) for key in ("description",) if key in schema}
        return {**nullable(schema), **description}


@dataclass(frozen=True)
class Answer:
    """One status of an endpoint. event: of what the events of a stream are, if it may be a stream."""

    description: str
    schema: Schema
    event: Schema | None = None
    media_type: str = "application/json"

    def values(self) -> dict[str, Any]:
        """As OpenAPI's Response Object."""
        content: dict[str, Any] = {self.media_type: {"schema": self.schema}}
        if self.event is not None:
            content["text/event-stream"] = {"schema": _event(self.event)}
        return {"description": self.description, "content": content}


def _event(data: Schema) -> Schema:
    """One event of a stream."""
    return {
        "type": "object",
        "description": "One event; data is JSON, or [DONE] at the end of OpenAI's streams.",
        "properties": {
            "event": TEXT,
            "data": {
                "if": {"const": "[DONE]"},
                "else": {**TEXT, "contentMediaType": "application/json", "contentSchema": data},
            },
        },
        "required": ["data"],
    }


@dataclass(frozen=True)
class Operation:
    """A method of a path. errors: statuses of COMMON_ERRORS that it may answer."""

    path: str
    method: str
    summary: str
    answers: Mapping[int, Answer]
    body: Body | None = None
    errors: Sequence[int] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Names of parts of the path, and what they are."""

    def values(self) -> dict[str, Any]:
        """As OpenAPI's Operation Object."""
        answers = {str(status): answer.values() for status, answer in self.answers.items()}
        for status in self.errors:
            answers[str(status)] = Answer(COMMON_ERRORS[status], ref("Error")).values()
        found: dict[str, Any] = {"summary": self.summary, "responses": answers}
        if self.body is not None:
            content = {"application/json": {"schema": self.body.schema()}}
            found["requestBody"] = {"required": True, "content": content}
        if self.parameters:
            found["parameters"] = [
                {"name": name, "in": "path", "required": True, "description": text, "schema": TEXT}
                for name, text in self.parameters.items()
            ]
        return found
