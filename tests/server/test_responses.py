"""The Responses API: with OpenAI's own client over real connections, its types as the oracle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import BaseModel, TypeAdapter

from tests.server.conftest import Client, error_of, running
from tests.server.fake_engine import FakeEngine, FakeTemplate, FakeTokenizer
from tests.server.scripted import Script, called, ended, said, thought, whatever_its_form
from tests.server.test_connection import wait_for
from tokenmill.errors import EngineDeadError, RequestError
from tokenmill.server import typed_events
from tokenmill.server.chat_events import ToolCallDelta, ToolCallStart, Usage
from tokenmill.server.responses import endpoints, request
from tokenmill.server.responses.events import ResponseEvents

PATH = "/v1/responses"
STREAM_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

FILLED = {
    "id": "resp_1",
    "created_at": 0,
    "model": "fake",
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
"""A response with all that its type requires."""

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def make(client: Client, **body: Any) -> Any:
    """A response, which must be 200 and as the client's types say."""
    response = client.post(PATH, body)
    assert response.status_code == 200, response.text
    check(Response, response.json())
    return response.json()


def check(model: type[BaseModel], value: dict[str, Any]) -> BaseModel:
    """Validate strictly: the type knows every field."""
    found = model.model_validate(value)
    assert set(value) - set(type(found).model_fields) <= {"store"}
    return found


def stream(client: Client, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each of which must be as the client's types say."""
    response = client.post(PATH, {**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return read_events(response.text)


def read_events(text: str) -> list[dict[str, Any]]:
    found = []
    for part in text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        typed = STREAM_EVENT.validate_python(event)
        assert typed.type == event["type"]
        # Older clients ask for the name of a function when its arguments are done.
        assert set(event) - set(type(typed).model_fields) <= {"name"}
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """What the model brings forth in every request of this test."""
    script = Script([*said("Hel", "lo"), *ended()])
    monkeypatch.setattr(endpoints, "chat_events", script)
    return script


@pytest.fixture
def api(engine: FakeEngine) -> Iterator[openai.OpenAI]:
    """OpenAI's client, connected to a real server."""
    with (
        running(engine) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_an_answer(api: openai.OpenAI, engine: FakeEngine) -> None:
    response = api.responses.create(model="fake", input="abc", max_output_tokens=4, temperature=0.5)
    assert response.output_text == "abca"
    assert response.id.startswith("resp_")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert (response.temperature, response.max_output_tokens, response.model) == (0.5, 4, "fake")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 4)
    assert response.usage.input_tokens_details.cached_tokens == 1
    assert engine.asked[0].params.temperature == 0.5


def test_a_complete_answer(client: Client, script: Script) -> None:
    answer = make(client, input="abc", metadata={"a": "b"}, instructions="Be kind")
    assert answer["status"] == "completed"
    assert answer["completed_at"] >= answer["created_at"]
    assert answer["output"][0]["content"][0]["text"] == "Hello"
    assert answer["output"][0]["status"] == "completed"
    assert answer["metadata"] == {"a": "b"}
    assert answer["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 17,
    }
    assert script.requests[0].messages == [
        {"role": "system", "content": "Be kind"},
        {"role": "user", "content": "abc"},
    ]


def test_the_events_of_everything(client: Client, script: Script) -> None:
    script.events = [
        *thought("Hm", "m"),
        *said("A", "b"),
        *called(0, "weather", '{"city":', ' "Rome"}'),
        *called(1, "weather", "{}"),
        *ended("tool_calls"),
    ]
    found = stream(client, input="abc", tools=[WEATHER])
    added, done = "response.output_item.added", "response.output_item.done"
    part_added, part_done = "response.content_part.added", "response.content_part.done"
    arguments = "response.function_call_arguments"
    assert [event["type"].removeprefix("response.") for event in found] == [
        kind.removeprefix("response.")
        for kind in (
            "created",
            "in_progress",
            *(added, part_added, "reasoning_text.delta", "reasoning_text.delta"),
            *("reasoning_text.done", part_done, done),
            *(added, part_added, "output_text.delta", "output_text.delta"),
            *("output_text.done", part_done, done),
            *(added, f"{arguments}.delta", f"{arguments}.delta", f"{arguments}.done", done),
            *(added, f"{arguments}.delta", f"{arguments}.done", done),
            "completed",
        )
    ]
    output = found[-1]["response"]["output"]
    assert [item["type"] for item in output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hmm"}]
    assert output[2]["arguments"] == '{"city": "Rome"}'
    assert [event["item"] for event in found if event["type"] == done] == output
    for event in found:
        if "item_id" in event:
            assert event["item_id"] == output[event["output_index"]]["id"]
    assert found[0]["response"]["output"] == []
    assert found[0]["response"]["usage"] is None


def test_a_stream_says_what_the_whole_answer_says(client: Client, script: Script) -> None:
    script.events = [*thought("x"), *said("y", "z"), *called(0, "weather", "{}"), *ended("tool_calls")]
    whole = make(client, input="a", tools=[WEATHER])
    last = stream(client, input="a", tools=[WEATHER])[-1]["response"]

    def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
        output = [{**item, "id": ""} for item in answer["output"]]
        times = {"created_at": 0, "completed_at": 0}
        return {**answer, **times, "id": "", "output": output}

    assert without_ids(last) == without_ids(whole)


@given(st.lists(st.sampled_from([*thought("a", ""), *said("b", ""), *called(0, "f", "{}", "")])))
def test_whatever_comes_the_events_add_up(parts: list[Any]) -> None:
    """Every item is opened, filled and closed, one after the other; the deltas are the whole text."""
    growing = ResponseEvents("fake", {})
    found: list[dict[str, Any]] = []
    begun_call = False
    for part in [*parts, *ended()]:
        if isinstance(part, ToolCallStart):
            begun_call = True
        elif not isinstance(part, ToolCallDelta | Usage):
            begun_call = begun_call and not getattr(part, "text", "")
        if isinstance(part, ToolCallDelta) and not begun_call:
            continue  # Only a call that is open has arguments.
        found += growing.add(part)
    found += growing.end()
    output: list[dict[str, Any]] = []
    text = ""
    open_item: dict[str, Any] | None = None
    for event in found:
        STREAM_EVENT.validate_python({**event, **({"response": FILLED} if "response" in event else {})})
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_item is None
            open_item, text = event["item"], ""
        elif kind == "output_item.done":
            assert open_item is not None
            assert event["item"]["id"] == open_item["id"]
            assert text == _text_of(event["item"])
            output.append(event["item"])
            open_item = None
        elif kind.endswith(".delta"):
            text += event["delta"]
    assert open_item is None
    assert output
    assert growing.answer["output"] == output


def _text_of(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    return "".join(part["text"] for part in item["content"])


def test_nothing_said_is_an_empty_message(client: Client, script: Script) -> None:
    script.events = ended()
    (item,) = make(client, input="a")["output"]
    assert item["content"][0]["text"] == ""


def test_cut_while_thinking(client: Client, script: Script) -> None:
    script.events = [*thought("so"), *ended("length")]
    found = stream(client, input="a")
    assert found[-1]["type"] == "response.incomplete"
    (item,) = found[-1]["response"]["output"]
    assert (item["type"], item["status"]) == ("reasoning", "incomplete")


def test_logprobs(client: Client) -> None:
    answer = make(client, input="ab", max_output_tokens=2, top_logprobs=1)
    entries = answer["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in entries] == ["a", "b"]
    assert entries[0]["top_logprobs"] == [{"token": "a", "bytes": [97], "logprob": -0.5}]
    include = ["message.output_text.logprobs"]
    found = stream(client, input="ab", max_output_tokens=2, include=include)
    deltas = [event for event in found if event["type"] == "response.output_text.delta"]
    assert [event["logprobs"][0]["token"] for event in deltas] == ["a", "b"]
    assert make(client, input="ab")["output"][0]["content"][0]["logprobs"] == []


def test_stream_with_the_client(api: openai.OpenAI, script: Script) -> None:
    script.events = [
        *said("Hel", "lo"),
        *called(0, "weather", '{"city": "Rome"}'),
        *ended("tool_calls"),
    ]
    with api.responses.stream(model="fake", input="a", tools=[WEATHER]) as events:  # type: ignore[list-item]
        kinds = [event.type for event in events]
        final = events.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.output_text == "Hello"
    assert final.output[1].type == "function_call"
    assert final.output[1].arguments == '{"city": "Rome"}'


def test_async_client(engine: FakeEngine, script: Script) -> None:
    async def ask(address: str) -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as client:
            whole = await client.responses.create(model="fake", input="a")
            text = ""
            async for event in await client.responses.create(model="fake", input="a", stream=True):
                if event.type == "response.output_text.delta":
                    text += event.delta
            return whole.output_text, text

    with running(engine) as address:
        assert asyncio.run(ask(address)) == ("Hello", "Hello")


def test_parse_with_pydantic(
    api: openai.OpenAI, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    class City(BaseModel):
        name: str
        people: int

    monkeypatch.setattr(request, "read_translated", whatever_its_form)
    script.events = [*said('{"name": "Rome", ', '"people": 3}'), *ended()]
    parsed = api.responses.parse(model="fake", input="a", text_format=City)
    assert parsed.output_parsed == City(name="Rome", people=3)
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"


def test_a_tool_is_called_and_answers(api: openai.OpenAI, script: Script) -> None:
    script.events = [
        *thought("A tool"),
        *called(0, "weather", '{"city": "Rome"}'),
        *ended("tool_calls"),
    ]
    tools: Any = [WEATHER]
    first = api.responses.create(model="fake", input="How is Rome?", tools=tools)
    call = first.output[1]
    assert call.type == "function_call"
    script.events = [*said("Sunny"), *ended()]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    sent: Any = [{"role": "user", "content": "How is Rome?"}, *first.output, result]
    second = api.responses.create(model="fake", input=sent, tools=tools)
    assert second.output_text == "Sunny"
    stored = api.responses.create(
        model="fake", input=[result], tools=tools, previous_response_id=first.id
    )
    assert stored.previous_response_id == first.id
    expected = [
        {"role": "user", "content": "How is Rome?"},
        {
            "role": "assistant",
            "content": "",
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
    ]
    assert script.requests[1].messages == expected
    assert script.requests[2].messages == expected


def test_a_conversation_goes_on(api: openai.OpenAI, script: Script) -> None:
    first = api.responses.create(model="fake", input="one", instructions="Be kind")
    second = api.responses.create(model="fake", input="two", previous_response_id=first.id)
    api.responses.create(model="fake", input="three", previous_response_id=second.id, instructions="Be")
    said_so_far = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "two"},
    ]
    # Instructions are not taken over.
    assert script.requests[1].messages == said_so_far
    assert script.requests[2].messages == [
        {"role": "system", "content": "Be"},
        *said_so_far,
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "three"},
    ]


def test_a_streamed_answer_can_be_continued(client: Client, script: Script) -> None:
    last = stream(client, input="one")[-1]["response"]
    make(client, input="two", previous_response_id=last["id"])
    assert [message["content"] for message in script.requests[1].messages] == ["one", "Hello", "two"]


class WholeTemplate(FakeTemplate):
    """Every message counts."""

    def render(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        return "".join(message["content"] for message in messages)


class ForgetfulEngine(FakeEngine):
    """Its template writes all messages."""

    @property
    def tokenizer(self) -> FakeTokenizer:
        return FakeTokenizer(WholeTemplate())


def test_truncation(script: Script) -> None:
    client = Client(ForgetfulEngine(max_model_len=100))
    items = [
        {"role": "system", "content": "s" * 10},
        {"role": "user", "content": "a" * 50},
        {"role": "assistant", "content": "b" * 10},
        {"role": "user", "content": "c" * 10},
    ]
    for truncation, limit, roles in (
        ("disabled", 20, "system user assistant user"),
        ("auto", 20, "system user assistant user"),
        ("auto", 21, "system user"),
        ("auto", None, "system user"),
    ):
        make(client, input=items, truncation=truncation, max_output_tokens=limit)
        assert " ".join(message["role"] for message in script.requests[-1].messages) == roles


def test_stored_responses(api: openai.OpenAI, script: Script) -> None:
    items: Any = [
        {"role": "developer", "content": "Be kind"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "assistant", "content": "b"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "d"},
    ]
    made = api.responses.create(model="fake", input=items)
    assert api.responses.retrieve(made.id) == made
    listed = api.responses.input_items.list(made.id, order="asc", limit=4)
    assert [item.type for item in listed.data] == ["message", "message", "message", "reasoning"]
    assert listed.has_more
    everything = list(api.responses.input_items.list(made.id, limit=2))
    assert [item.type for item in everything] == [
        "function_call_output",
        "function_call",
        "reasoning",
        *["message"] * 3,
    ]
    with pytest.raises(openai.BadRequestError, match="background"):
        api.responses.cancel(made.id)
    api.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match=made.id):
        api.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        api.responses.delete(made.id)


def test_pages(client: Client, script: Script) -> None:
    made = make(client, input=[{"role": "user", "content": letter} for letter in "abc"])
    path = f"{PATH}/{made['id']}/input_items"
    page = client.request("GET", path, params={"order": "asc", "limit": 2}).json()
    check(ResponseItemList, page)
    assert [item["content"][0]["text"] for item in page["data"]] == ["a", "b"]
    page = client.request("GET", path, params={"order": "asc", "after": page["last_id"]}).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["c"]
    assert not page["has_more"]
    for name, value in (("order", "up"), ("limit", "0"), ("limit", "x"), ("after", "msg")):
        response = client.request("GET", path, params={name: value})
        assert response.status_code == 400
        assert error_of(response)["param"] == name


def test_not_stored(client: Client, script: Script) -> None:
    made = make(client, input="a", store=False)
    assert client.request("GET", f"{PATH}/{made['id']}").status_code == 404
    error = client.refused(PATH, 404, input="b", previous_response_id=made["id"])
    assert (error["param"], error["code"]) == ("previous_response_id", "response_not_found")
    kept = make(client, input="a")
    assert client.request("GET", f"{PATH}/{kept['id']}").json() == kept
    response = client.request("GET", f"{PATH}/{kept['id']}", params={"stream": "true"})
    assert response.status_code == 400


def test_an_error_before_the_first_event(client: Client, script: Script) -> None:
    script.events = [RequestError("the prompt is too long")]
    for streams in (False, True):
        assert "too long" in client.refused(PATH, 400, input="a", stream=streams)["message"]


def test_an_error_in_a_stream(client: Client, script: Script) -> None:
    script.events = [*said("Hel"), EngineDeadError("the engine stopped")]
    found = stream(client, input="a")
    assert found[-1]["type"] == "response.failed"
    answer = found[-1]["response"]
    assert answer["status"] == "failed"
    assert answer["error"] == {"code": "server_error", "message": "the engine stopped"}
    assert answer["output"][0]["status"] == "incomplete"
    assert client.request("GET", f"{PATH}/{answer['id']}").status_code == 404


def test_signs_of_life(client: Client, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_events, "SILENCE_S", 0.01)
    script.pace = 0.05
    response = client.post(PATH, {"input": "a", "stream": True})
    parts = response.text.split("\n\n")
    assert parts[0] == ": still there"
    assert parts.count(": still there") > 3
    rest = "\n\n".join(part for part in parts if part != ": still there")
    assert read_events(rest)[-1]["response"]["status"] == "completed"
    # Once the stream has begun, errors are events whenever they come.
    script.events = [RequestError("the prompt is too long")]
    found = client.post(PATH, {"input": "a", "stream": True}).text.split("\n\n")
    events = read_events("\n\n".join(part for part in found if part != ": still there"))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert events[-1]["response"]["error"]["code"] == "invalid_prompt"


def test_signs_of_life_do_not_disturb_the_client(
    engine: FakeEngine, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typed_events, "SILENCE_S", 0.01)
    script.pace = 0.05
    with (
        running(engine) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
        client.responses.stream(model="fake", input="a") as events,
    ):
        assert events.get_final_response().output_text == "Hello"


def test_an_internal_error_tells_nothing(client: Client, script: Script) -> None:
    script.events = [*said("Hel"), ValueError("secret")]
    assert "secret" not in stream(client, input="a")[-1]["response"]["error"]["message"]


def test_an_aborted_request_is_an_error(client: Client, script: Script) -> None:
    script.events = [*said("Hel"), *ended("abort")]
    client.refused(PATH, 503, input="a")
    assert stream(client, input="a")[-1]["type"] == "response.failed"


def test_a_client_that_leaves() -> None:
    engine = FakeEngine(pace=0.005)
    body = {"input": "a", "max_output_tokens": 100_000, "stream": True}
    with running(engine) as address:
        with httpx.stream("POST", address + PATH, json=body) as response:
            assert next(response.iter_lines()) == "event: response.created"
        wait_for(engine, "dropped")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a"]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "b"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "input[0].call_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "often"}, "truncation"),
        ({"include": ["everything"]}, "include"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": 3}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ],
)
def test_refused(client: Client, body: dict[str, Any], param: str) -> None:
    if body and "input" not in body:
        body = {"input": "a", **body}
    assert client.refused(PATH, 400, **body)["param"] == param
    assert client.engine.asked == []


def test_an_unknown_model(client: Client) -> None:
    assert client.refused(PATH, 404, input="a", model="gpt")["code"] == "model_not_found"


def test_what_the_chat_is_asked(client: Client, script: Script) -> None:
    make(
        client,
        input="a",
        tools=[WEATHER, {**WEATHER, "name": "time"}],
        tool_choice={
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "time"}],
        },
        parallel_tool_calls=False,
        top_p=0.5,
        top_k=3,
        seed=4,
        max_output_tokens=9,
        cache_salt="s",
    )
    request = script.requests[0]
    assert [tool["function"]["name"] for tool in request.options["tools"]] == ["time"]
    sampling = request.common.sampling
    assert (sampling.top_p, sampling.top_k, sampling.seed, sampling.max_tokens) == (0.5, 3, 4, 9)
    assert request.common.cache_salt == "s"


@pytest.mark.parametrize(
    ("effort", "expected"),
    [("high", {"reasoning_effort": "high"}), ("none", {"enable_thinking": False}), (None, {})],
)
def test_effort(client: Client, script: Script, effort: str | None, expected: dict[str, Any]) -> None:
    answer = make(client, input="a", reasoning={"effort": effort}, chat_template_kwargs={"mode": "x"})
    assert answer["reasoning"]["effort"] == effort
    options = script.requests[0].options
    names = ("reasoning_effort", "enable_thinking", "mode")
    assert {name: options[name] for name in names if name in options} == {**expected, "mode": "x"}


def test_instructions_and_a_first_message_of_the_developer_are_one(
    client: Client, script: Script
) -> None:
    items = [{"role": "developer", "content": "B"}, {"role": "user", "content": "c"}]
    make(client, input=items, instructions="A")
    assert script.requests[0].messages[0] == {"role": "system", "content": "A\n\nB"}
    assert len(script.requests[0].messages) == 2


def test_several_parts_stay_parts(client: Client, script: Script) -> None:
    parts = [{"type": "input_text", "text": letter} for letter in "ab"]
    make(client, input=[{"role": "user", "content": parts}])
    assert script.requests[0].messages[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]


@pytest.mark.model
def test_a_real_model(demo: str) -> None:
    with openai.OpenAI(base_url=f"{demo}/v1", api_key="none") as client:
        question = "What is the capital of France?"
        asked: dict[str, Any] = {
            "model": "fake",
            "instructions": "You are a helpful assistant.",
            "temperature": 0,
            "max_output_tokens": 12,
        }
        first = client.responses.create(input=question, **asked)
        assert "Paris" in first.output_text
        second = client.responses.create(
            input="Which country did I ask for?", previous_response_id=first.id, **asked
        )
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
        assert second.usage.input_tokens_details.cached_tokens > 0
        events = list(client.responses.create(input=question, stream=True, **asked))
        assert events[-1].type in ("response.completed", "response.incomplete")
        assert events[-1].response.output_text == first.output_text
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == first.output_text
