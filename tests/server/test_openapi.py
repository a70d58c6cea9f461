from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import pytest
from starlette.routing import Route

from tests.server.conftest import Client, events
from tests.server.fake_engine import FakeEngine
from tokenmill import __version__
from tokenmill.config import ServerConfig
from tokenmill.errors import TokenmillError
from tokenmill.server.app import create_app
from tokenmill.server.errors import ApiError
from tokenmill.server.fields import Fields
from tokenmill.server.openapi.document import OPERATIONS, operations_of
from tokenmill.server.openapi.observe import Seen, observe
from tokenmill.server.openapi.operation import Body

BODIES = [operation for operation in OPERATIONS if operation.body is not None]


@pytest.fixture
def served(engine: FakeEngine) -> dict[str, Any]:
    client = Client(engine, config=ServerConfig(enable_sleep=True))
    response = client.request("GET", "/openapi.json")
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


def matches(served: Mapping[str, Any], schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a value is as a schema of the document says."""
    whole = {**schema, "components": served["components"]}
    return bool(jsonschema_rs.Draft202012Validator(whole).is_valid(value))


def test_every_route_is_described_and_nothing_else(engine: FakeEngine, served: dict[str, Any]) -> None:
    app = create_app(engine, model_names=("fake",), config=ServerConfig(enable_sleep=True))
    routes = [route for route in app.routes if isinstance(route, Route)]
    assert len(routes) == len(app.routes)
    there = sorted(key for route in routes if route.include_in_schema for key in operations_of(route))
    described = [(path, method) for path, item in served["paths"].items() for method in item]
    assert sorted(described) == there
    assert sorted((operation.path, operation.method) for operation in OPERATIONS) == there


def test_head(served: dict[str, Any]) -> None:
    assert served["openapi"].startswith("3.1.")
    assert served["info"]["version"] == __version__


def test_every_reference_has_its_target(served: dict[str, Any]) -> None:
    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    names = {f"#/components/schemas/{name}" for name in served["components"]["schemas"]}
    assert set(references(served)) == names


@pytest.mark.parametrize("operation", BODIES, ids=lambda operation: operation.path)
def test_what_is_required(operation: Any) -> None:
    body = operation.body
    body.read(Fields(dict(body.minimal)))
    for name in body.minimal:
        less = {key: value for key, value in body.minimal.items() if key != name}
        with pytest.raises(TokenmillError):
            body.read(Fields(less))


@pytest.mark.parametrize("operation", BODIES, ids=lambda operation: operation.path)
def test_nothing_is_known_of_fields_that_are_not_read(operation: Any) -> None:
    """What several endpoints share may hold more than one of them reads; the rest must be read."""
    from tokenmill.server.openapi.sampling import known

    def names(seen: Seen, where: str = "") -> set[str]:
        found = {f"{where}{name}" for name in seen.schemas}
        for name, inner in seen.sections.items():
            found |= names(inner, f"{where}{name}.")
        return found

    body = operation.body
    read = names(observe(body.read, (body.minimal, *body.further)))
    assert set(body.known) - set(known()) <= read


def test_a_field_that_could_be_anything_must_be_explained() -> None:
    with pytest.raises(KeyError, match="odd"):
        Body(lambda fields: fields.any("odd"), {}, {}).schema()


def test_nested_fields_refusals_and_choices() -> None:
    def read(fields: Fields) -> None:
        fields.section("outer").integer("size", minimum=2)
        fields.refuse(("gone",))
        fields.refuse(("mode",), (None, "a"))

    schema = Body(read, {}, {"outer.size": {"description": "How large."}}).schema()
    size = {"anyOf": [{"type": "integer", "minimum": 2}, {"type": "null"}], "description": "How large."}
    outer = {"type": "object", "properties": {"size": size}}
    assert schema == {
        "type": "object",
        "properties": {
            "mode": {"enum": [None, "a"]},
            "outer": {"anyOf": [outer, {"type": "null"}]},
        },
        "description": "Must not be set: gone.",
    }


@pytest.mark.parametrize(
    ("path", "event", "body"),
    [
        ("/v1/completions", "CompletionChunk", {"prompt": "ab", "logprobs": 2, "n": 2}),
        ("/v1/completions", "CompletionChunk", {"prompt": "ab", "return_token_ids": True}),
        ("/v1/completions", "CompletionChunk", {"prompt": "ab", "echo": True}),
        ("/v1/chat/completions", "ChatChunk", {"logprobs": True, "top_logprobs": 1, "n": 2}),
        ("/v1/chat/completions", "ChatChunk", {"return_token_ids": True}),
    ],
)
def test_pieces_of_streams(
    client: Client, served: dict[str, Any], path: str, event: str, body: dict[str, Any]
) -> None:
    if path.endswith("chat/completions"):
        body["messages"] = [{"role": "user", "content": "ab"}]
    schema = {"$ref": f"#/components/schemas/{event}"}
    body |= {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3}
    found = events(client.post(path, body))
    assert len(found) > 3
    assert all(matches(served, schema, piece) for piece in found)
    assert not matches(served, schema, {**found[0], "surprise": 1})


def test_the_error_that_ends_a_stream(client: Client, served: dict[str, Any]) -> None:
    found = events(client.post("/v1/completions", {"prompt": "a?", "stream": True}))
    assert matches(served, {"$ref": "#/components/schemas/Error"}, found[-1])
    assert not matches(served, {"$ref": "#/components/schemas/Error"}, found[0])


@pytest.mark.parametrize(
    ("body", "good"),
    [
        ({"prompt": "a", "response_format": {"type": "json_object"}}, True),
        ({"prompt": "a", "stream_options": 0}, False),
        ({"prompt": "a", "echo": 0}, False),
    ],
)
def test_types_are_not_mixed_up(client: Client, body: dict[str, Any], good: bool) -> None:
    assert (client.post("/v1/completions", body).status_code == 200) is good


def test_a_section_must_be_an_object() -> None:
    with pytest.raises(ApiError, match="inner must be an object"):
        Fields({"inner": []}).section("inner")
    assert not Fields({"inner": None}).section("inner").has("x")


@pytest.mark.parametrize("value", [0, 1.0, 0.0])
def test_refusals_do_not_take_numbers_for_truth(value: float) -> None:
    Fields({"x": False}).refuse(("x",), (False, True))
    with pytest.raises(ApiError, match="x is not supported"):
        Fields({"x": value}).refuse(("x",), (False, True))
