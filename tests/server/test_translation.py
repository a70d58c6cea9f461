"""How requests of the Responses and the Messages API are put into the words of chat completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.errors import ApiError
from tokenmill.server.fields import Fields
from tokenmill.server.messages import request as messages
from tokenmill.server.protocol import read_chat
from tokenmill.server.responses import request as responses
from tokenmill.server.translation import read_translated, template_options

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
RESPONSES_TOOLS = [
    {"type": "function", "name": name, "parameters": SCHEMA, "strict": True} for name in ("a", "b")
]
MESSAGES_TOOLS = [{"name": name, "input_schema": SCHEMA} for name in ("a", "b")]

Translate = Callable[..., dict[str, Any]]


@pytest.fixture
def translate(monkeypatch: pytest.MonkeyPatch) -> Translate:
    """The chat completions' body that a request is put into."""
    found: list[dict[str, Any]] = []

    def note(body: Mapping[str, Any], defaults: SamplingParams, names: Mapping[str, str]) -> Any:
        found.append({name: value for name, value in body.items() if value is not None})
        return read_chat(Fields({"messages": [{"role": "user", "content": "a"}]}), defaults)

    def translated(module: Any, **body: Any) -> dict[str, Any]:
        monkeypatch.setattr(module, "read_translated", note)
        if module is responses:
            responses.read_response(Fields({"input": "a", **body}), SamplingParams())
        else:
            body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **body}
            messages.read_message(Fields(body), SamplingParams())
        return found[-1]

    return translated


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ({}, None),
        ({"format": {"type": "text"}}, None),
        ({"format": {"type": "json_object"}}, {"type": "json_object"}),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
        ),
    ],
)
def test_the_form_of_a_response(translate: Translate, text: Any, expected: Any) -> None:
    assert translate(responses, text=text).get("response_format") == expected


def test_the_form_of_a_message(translate: Translate) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    found = translate(messages, output_config={"format": form})["response_format"]
    assert found["type"] == "json_schema"
    assert found["json_schema"]["schema"] == SCHEMA
    assert "response_format" not in translate(messages)


@pytest.mark.parametrize(
    ("choice", "expected", "offered"),
    [
        (None, None, ["a", "b"]),
        ("auto", "auto", ["a", "b"]),
        ("none", "none", ["a", "b"]),
        ("required", "required", ["a", "b"]),
        (
            {"type": "function", "name": "b"},
            {"type": "function", "function": {"name": "b"}},
            ["a", "b"],
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "b"}],
            },
            "required",
            ["b"],
        ),
    ],
)
def test_tools_of_a_response(
    translate: Translate, choice: Any, expected: Any, offered: list[str]
) -> None:
    found = translate(responses, tools=RESPONSES_TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert found.get("tool_choice") == expected
    assert found["parallel_tool_calls"] is False
    assert found["tools"] == [
        {"type": "function", "function": {"name": name, "parameters": SCHEMA, "strict": True}}
        for name in offered
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "b"}, {"type": "function", "function": {"name": "b"}}),
    ],
)
def test_tools_of_a_message(translate: Translate, choice: Any, expected: Any) -> None:
    found = translate(messages, tools=MESSAGES_TOOLS, tool_choice=choice)
    assert found.get("tool_choice") == expected
    assert found["parallel_tool_calls"] is True
    assert found["tools"] == [
        {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("a", "b")
    ]


def test_one_tool_at_a_time(translate: Translate) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    found = translate(messages, tools=MESSAGES_TOOLS, tool_choice=choice)
    assert found["parallel_tool_calls"] is False


@pytest.mark.parametrize("module", [messages, responses])
def test_without_tools_nothing_is_said_of_them(translate: Translate, module: Any) -> None:
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(translate(module))


def test_errors_tell_the_names_that_the_client_knows() -> None:
    user = [{"role": "user", "content": "a"}]
    names = {"max_completion_tokens": "max_output_tokens", "stop": "stop_sequences"}
    with pytest.raises(ApiError, match=r"^max_output_tokens must be at least 1") as caught:
        read_translated({"messages": user, "max_completion_tokens": 0}, SamplingParams(), names)
    assert caught.value.param == "max_output_tokens"
    with pytest.raises(ApiError, match=r"^stop_sequences must be") as caught:
        read_translated({"messages": user, "stop": [1]}, SamplingParams(), names)
    assert (caught.value.param, caught.value.status) == ("stop_sequences", 400)
    with pytest.raises(ApiError, match=r"^temperature must be") as caught:
        read_translated({"messages": user, "temperature": -1}, SamplingParams(), names)
    assert caught.value.param == "temperature"


@pytest.mark.parametrize(
    ("given", "effort", "thinks", "expected"),
    [
        (None, None, None, {}),
        (None, "low", True, {"reasoning_effort": "low", "enable_thinking": True}),
        (None, "none", None, {"enable_thinking": False}),
        ({"enable_thinking": True}, "none", None, {"enable_thinking": True}),
    ],
)
def test_template_options(
    given: Any, effort: str | None, thinks: bool | None, expected: dict[str, Any]
) -> None:
    assert template_options(given, effort=effort, thinks=thinks) == expected
