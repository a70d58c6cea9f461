"""The Messages API: with Anthropic's own client over real connections, its types as the oracle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.server.conftest import Client, running
from tests.server.fake_engine import FakeEngine
from tests.server.scripted import Script, called, ended, said, thought, whatever_its_form
from tests.server.test_connection import wait_for
from tokenmill.config import ServerConfig
from tokenmill.errors import EngineDeadError, RequestError
from tokenmill.server import typed_events
from tokenmill.server.controls import Controls
from tokenmill.server.messages import endpoints, request

PATH = "/v1/messages"
USER: list[Any] = [{"role": "user", "content": "abc"}]
STREAM_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Tells the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def make(client: Client, **body: Any) -> dict[str, Any]:
    """A message, which must be 200 and as the client's types say."""
    response = client.post(PATH, {"messages": USER, "max_tokens": 9, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    Message.model_validate(answer)
    assert set(answer) <= set(Message.model_fields)
    return answer


def stream(client: Client, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each of which must be as the client's types say."""
    body = {"messages": USER, "max_tokens": 9, **body, "stream": True}
    response = client.post(PATH, body)
    assert response.status_code == 200, response.text
    found = []
    for part in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "error"):
            typed = STREAM_EVENT.validate_python(event)
            assert typed.type == event["type"]
            assert set(event) <= set(type(typed).model_fields)
        found.append(event)
    return found


def refused(client: Client, status: int, **body: Any) -> str:
    """The message of an error, which must have the form of the Messages API."""
    response = client.post(PATH, {"messages": USER, "max_tokens": 9, **body})
    assert response.status_code == status, response.text
    found = response.json()
    assert set(found) == {"type", "error"}
    assert found["type"] == "error"
    assert set(found["error"]) == {"type", "message"}
    return str(found["error"]["message"])


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """What the model brings forth in every request of this test."""
    script = Script([*said("Hel", "lo"), *ended()])
    monkeypatch.setattr(endpoints, "chat_events", script)
    return script


@pytest.fixture
def api(engine: FakeEngine) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client, connected to a real server."""
    with (
        running(engine) as address,
        anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client,
    ):
        yield client


def test_an_answer(api: anthropic.Anthropic, engine: FakeEngine) -> None:
    message = api.messages.create(
        model="fake",
        messages=USER,
        max_tokens=4,
        stop_sequences=["x"],
        metadata={"user_id": "u"},
        # The client no longer has these as arguments, the protocol still does.
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 5},
    )
    assert message.id.startswith("msg_")
    assert (message.role, message.model, message.stop_reason) == ("assistant", "fake", "max_tokens")
    assert message.content[0].type == "text"
    assert message.content[0].text == "abca"
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (2, 1, 4)
    params = engine.asked[0].params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.9, 5, 4)
    assert list(params.stop or ()) == ["x"]


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (ended("stop"), "end_turn", None),
        (ended("stop", 7), "end_turn", None),
        (ended("stop", "END"), "stop_sequence", "END"),
        (ended("length"), "model_context_window_exceeded", None),
    ],
)
def test_stop_reasons(
    client: Client, script: Script, end: list[Any], reason: str, sequence: str | None
) -> None:
    script.events = [*said("a"), *end]
    answer = make(client, max_tokens=8)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)


def test_the_events_of_everything(client: Client, script: Script) -> None:
    script.events = [
        *thought("Hm", "m"),
        *said("A", "b"),
        *called(0, "weather", '{"city":', ' "Rome"}'),
        *called(1, "weather", "{}"),
        *ended("tool_calls"),
    ]
    found = stream(client, tools=[WEATHER])
    start, delta, stop = "content_block_start", "content_block_delta", "content_block_stop"
    assert [event["type"] for event in found] == [
        *("message_start", "ping"),
        *(start, delta, delta, stop),
        *(start, delta, delta, stop),
        *(start, delta, delta, stop),
        *(start, delta, stop),
        *("message_delta", "message_stop"),
    ]
    assert found[0]["message"]["content"] == []
    assert found[0]["message"]["usage"]["input_tokens"] == 6
    assert found[0]["message"]["usage"]["output_tokens"] == 0
    assert [e["content_block"]["type"] for e in found if e["type"] == start] == [
        *("thinking", "text", "tool_use", "tool_use"),
    ]
    assert [e["delta"]["type"] for e in found if e["type"] == delta] == [
        *["thinking_delta"] * 2,
        *["text_delta"] * 2,
        *["input_json_delta"] * 3,
    ]
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == 7
    assert found[-2]["usage"]["cache_read_input_tokens"] == 4
    assert make(client, tools=[WEATHER])["content"] == [
        {"type": "thinking", "thinking": "Hmm", "signature": ""},
        {"type": "text", "text": "Ab"},
        {"type": "tool_use", "id": "call_0", "name": "weather", "input": {"city": "Rome"}},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}},
    ]


def test_stream_with_the_client(api: anthropic.Anthropic, script: Script) -> None:
    script.events = [
        *thought("Hm"),
        *said("Hel", "lo"),
        *called(0, "weather", '{"city":', ' "Rome"}'),
        *ended("tool_calls"),
    ]
    with api.messages.stream(
        model="fake",
        messages=USER,
        max_tokens=9,
        tools=[WEATHER],  # type: ignore[list-item]
    ) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert text == "Hello"
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[2].type == "tool_use"
    assert final.content[2].input == {"city": "Rome"}
    assert final.stop_reason == "tool_use"
    assert (final.usage.input_tokens, final.usage.output_tokens) == (6, 7)


def test_async_client(engine: FakeEngine, script: Script) -> None:
    async def ask(address: str) -> tuple[Any, str]:
        async with anthropic.AsyncAnthropic(base_url=address, api_key="none") as client:
            whole = await client.messages.create(model="fake", messages=USER, max_tokens=9)
            text = ""
            async with client.messages.stream(model="fake", messages=USER, max_tokens=9) as events:
                async for piece in events.text_stream:
                    text += piece
            return whole.content[0], text

    with running(engine) as address:
        block, text = asyncio.run(ask(address))
    assert (block.text, text) == ("Hello", "Hello")


def test_parse_with_pydantic(
    api: anthropic.Anthropic, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    class City(BaseModel):
        name: str
        people: int

    monkeypatch.setattr(request, "read_translated", whatever_its_form)
    script.events = [*said('{"name": "Rome", ', '"people": 3}'), *ended()]
    parsed = api.messages.parse(model="fake", messages=USER, max_tokens=9, output_format=City)
    assert parsed.parsed_output == City(name="Rome", people=3)


def test_a_tool_is_called_and_answers(api: anthropic.Anthropic, script: Script) -> None:
    script.events = [
        *thought("A tool"),
        *said("Let me see"),
        *called(0, "weather", '{"city": "Rome"}'),
        *ended("tool_calls"),
    ]
    tools: Any = [WEATHER]
    first = api.messages.create(model="fake", messages=USER, max_tokens=9, tools=tools)
    assert first.stop_reason == "tool_use"
    call = first.content[2]
    assert call.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sun"}
    failed = {**result, "content": [{"type": "text", "text": "rain"}], "is_error": True}
    sent: Any = [
        *USER,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result, failed, {"type": "text", "text": "Thanks"}]},
    ]
    api.messages.create(model="fake", messages=sent, max_tokens=9, tools=tools, system="Be kind")
    assert script.requests[1].messages == [
        {"role": "system", "content": "Be kind"},
        {"role": "user", "content": "abc"},
        {
            "role": "assistant",
            "content": "Let me see",
            "reasoning_content": "A tool",
            "tool_calls": [
                {
                    "id": "call_0",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "sun", "name": "weather"},
        {"role": "tool", "tool_call_id": "call_0", "content": "Error: rain", "name": "weather"},
        {"role": "user", "content": "Thanks"},
    ]


def test_arguments_that_are_cut_are_none(client: Client, script: Script) -> None:
    script.events = [*called(0, "weather", '{"city": "Ro'), *ended("length")]
    answer = make(client, max_tokens=7, tools=[WEATHER])
    assert answer["content"][0]["input"] == {}
    assert answer["stop_reason"] == "max_tokens"


def test_messages_of_one_role_are_one_turn(client: Client, script: Script) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
        {"role": "user", "content": "d"},
    ]
    make(client, messages=messages)
    assert script.requests[0].messages == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    assert script.requests[0].options["add_generation_prompt"] is True


def test_the_system_prompt_in_blocks(client: Client, script: Script) -> None:
    block = {"type": "text", "text": "Be kind", "cache_control": {"type": "ephemeral"}}
    make(client, system=[block])
    assert script.requests[0].messages[0] == {"role": "system", "content": "Be kind"}


def test_the_beginning_of_an_answer_is_continued(client: Client, script: Script) -> None:
    make(client, messages=[*USER, {"role": "assistant", "content": "The answer is"}])
    options = script.requests[0].options
    assert options["continue_final_message"] is True
    assert options["add_generation_prompt"] is False


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [({"type": "enabled", "budget_tokens": 1024}, True), ({"type": "disabled"}, False), (None, None)],
)
def test_thinking(client: Client, script: Script, thinking: Any, expected: bool | None) -> None:
    make(client, thinking=thinking)
    assert script.requests[0].options.get("enable_thinking") is expected


def test_effort(client: Client, script: Script) -> None:
    make(client, output_config={"effort": "low"}, chat_template_kwargs={"mode": "x"})
    options = script.requests[0].options
    assert (options["reasoning_effort"], options["mode"]) == ("low", "x")


def test_count_tokens(api: anthropic.Anthropic, engine: FakeEngine) -> None:
    counted = api.messages.count_tokens(model="fake", messages=USER)
    assert counted.input_tokens == 3
    assert engine.asked == []
    with pytest.raises(anthropic.BadRequestError, match="image"):
        api.messages.count_tokens(
            model="fake",
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "url", "url": "http://a/b"}}],
                }
            ],
        )


def test_an_error_before_the_first_event(client: Client, script: Script) -> None:
    script.events = [RequestError("the prompt is too long")]
    for streams in (False, True):
        assert "too long" in refused(client, 400, stream=streams)


def test_errors_reach_the_client(api: anthropic.Anthropic, script: Script) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        api.messages.create(model="claude", messages=USER, max_tokens=9)
    assert caught.value.body == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": "there is no model 'claude' here; this server has fake",
        },
    }
    script.events = [*said("Hel"), EngineDeadError("the engine stopped")]
    with (
        pytest.raises(anthropic.APIStatusError, match="the engine stopped"),
        api.messages.stream(model="fake", messages=USER, max_tokens=9) as events,
    ):
        events.get_final_message()


def test_an_error_in_a_stream(client: Client, script: Script) -> None:
    script.events = [*said("Hel"), ValueError("secret")]
    last = stream(client)[-1]
    assert last["type"] == "error"
    assert last["error"]["type"] == "api_error"
    assert "secret" not in last["error"]["message"]


def test_signs_of_life(engine: FakeEngine, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_events, "SILENCE_S", 0.01)
    script.pace = 0.05
    with (
        running(engine) as address,
        anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client,
    ):
        with client.messages.stream(model="fake", messages=USER, max_tokens=9) as events:
            assert events.get_final_text() == "Hello"
        script.events = [RequestError("the prompt is too long")]
        with (
            pytest.raises(anthropic.APIStatusError, match="too long"),
            client.messages.stream(model="fake", messages=USER, max_tokens=9) as events,
        ):
            events.get_final_message()


def test_an_aborted_request_is_an_error(client: Client, script: Script) -> None:
    script.events = [*said("Hel"), *ended("abort")]
    refused(client, 503)
    assert stream(client)[-1]["error"]["type"] == "overloaded_error"


def test_a_client_that_leaves() -> None:
    engine = FakeEngine(pace=0.005)
    body = {"messages": USER, "max_tokens": 100_000, "stream": True}
    with running(engine) as address:
        with httpx.stream("POST", address + PATH, json=body) as response:
            assert next(response.iter_lines()) == "event: message_start"
        wait_for(engine, "dropped")


def block(**values: Any) -> list[Any]:
    return [{"role": "user", "content": [values]}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"messages": None}, "messages is missing"),
        ({"messages": []}, "messages must be a list of 1"),
        ({"messages": ["a"]}, "messages[0] must be an object"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role must be"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
        ({"messages": block(type="image")}, "messages[0].content[0].type 'image' is not supported"),
        ({"messages": [{"role": "user", "content": []}]}, "messages have no content"),
        ({"messages": block(type="document")}, "'document' is not supported"),
        ({"messages": block(type="text")}, "messages[0].content[0].text is missing"),
        ({"messages": block(type="tool_result")}, "tool_use_id is missing"),
        (
            {"messages": block(type="tool_result", tool_use_id="a", content=[{"type": "image"}])},
            "messages[0].content[0].content[0].type 'image' is not supported",
        ),
        ({"system": 3}, "system must be a text"),
        ({"system": [{"type": "image"}]}, "system[0].type 'image'"),
        ({"stop_sequences": "a"}, "stop_sequences must be a list"),
        ({"stop_sequences": [1]}, "stop_sequences must be"),
        ({"temperature": -1}, "temperature must be"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema is missing"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name is missing"),
        ({"tool_choice": {"type": "any"}}, "no tools"),
        ({"tool_choice": {"type": "all"}}, "tool_choice.type must be"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"thinking": {"type": "hard"}}, "thinking.type must be"),
        ({"container": "c"}, "container is not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type must be"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)
def test_refused(client: Client, body: dict[str, Any], message: str) -> None:
    assert message in refused(client, 400, **body)
    assert client.engine.asked == []


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", PATH, 405, "invalid_request_error"),
        ("GET", f"{PATH}/batches", 404, "not_found_error"),
        ("POST", f"{PATH}/count_tokens", 400, "invalid_request_error"),
    ],
)
def test_whatever_is_refused_here_has_this_form(
    client: Client, method: str, path: str, status: int, kind: str
) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind


def test_keys(engine: FakeEngine) -> None:
    client = Client(engine, config=ServerConfig(api_keys=("first",)))
    body = {"messages": USER, "max_tokens": 1}
    refused = client.post(PATH, body)
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"
    headers = {"x-api-key": "first"}
    assert client.request("POST", PATH, json=body, headers=headers).status_code == 200


def test_a_server_that_takes_nobody(engine: FakeEngine) -> None:
    controls = Controls.of(ServerConfig())
    client = Client(engine, controls=controls)
    controls.gate.close("draining", "the server is stopping", 3)
    response = client.post(PATH, {"messages": USER, "max_tokens": 1})
    assert (response.status_code, response.headers["retry-after"]) == (503, "3")
    assert response.json()["error"] == {"type": "overloaded_error", "message": "the server is stopping"}


def test_a_body_that_is_not_json(client: Client) -> None:
    response = client.request("POST", PATH, content=b"{")
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.model
def test_a_real_model(demo: str) -> None:
    with anthropic.Anthropic(base_url=demo, api_key="none") as client:
        messages: Any = [{"role": "user", "content": "What is the capital of France?"}]
        asked: dict[str, Any] = {
            "model": "fake",
            "max_tokens": 12,
            "messages": messages,
            "system": "You are a helpful assistant.",
            "extra_body": {"temperature": 0},
        }
        whole = client.messages.create(**asked)
        assert whole.content[0].type == "text"
        assert "Paris" in whole.content[0].text
        with client.messages.stream(**asked) as events:
            streamed = events.get_final_message()
        assert streamed.content[0].type == "text"
        assert streamed.content[0].text == whole.content[0].text
        counted = client.messages.count_tokens(
            model="fake", messages=messages, system="You are a helpful assistant."
        )
        for usage in (whole.usage, streamed.usage):
            cached = usage.cache_read_input_tokens
            assert cached is not None
            assert usage.input_tokens + cached == counted.input_tokens
        assert streamed.usage.cache_read_input_tokens
        begun = {"role": "assistant", "content": "The capital of France is"}
        continued = client.messages.create(**{**asked, "messages": [*messages, begun]})
        assert continued.content[0].type == "text"
        assert "Paris" in continued.content[0].text
        assert "capital" not in continued.content[0].text.split("Paris")[0]
