"""Tools, thoughts and forms in chats."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.server.conftest import Client, events, running
from tests.server.fake_engine import FakeEngine
from tokenmill.config import ServerConfig
from tokenmill.engine.structured_outputs import StructuredOutputs
from tokenmill.errors import ConfigError
from tokenmill.server.app import create_app

PATH = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ROME = '{"city": "Rome"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ROME}}}\n</tool_call>'
TWO_CALLS = f'Let me see.\n{CALL}\n<tool_call>\n{{"name": "get_time", "arguments": {{}}}}\n</tool_call>'


@pytest.fixture
def thinking() -> Client:
    """A client of a model that thinks."""
    return Client(FakeEngine(template_source="<think>", reason="stop"))


@pytest.fixture
def calling() -> Client:
    """A client of a model that stops when it has said what the prompt says."""
    return Client(FakeEngine(template_source="<tool_call>", reason="stop"))


def ask(client: Client, text: str, **body: Any) -> Any:
    """The answer, which is ``text``, whole; it must be the same in a stream."""
    whole = client.chat(text, max_tokens=len(text), **body)
    messages = [{"role": "user", "content": text}]
    body |= {"messages": messages, "max_tokens": len(text), "stream": True}
    chunks = events(client.post(PATH, body))
    for choice in whole["choices"]:
        streamed: dict[str, Any] = {"content": ""}
        calls: dict[int, dict[str, Any]] = {}
        reasons, tokens, logprobs = [], [], []
        for chunk in chunks:
            (piece,) = chunk["choices"]
            if piece["index"] != choice["index"]:
                continue
            delta = piece["delta"]
            for name in ("content", "reasoning_content", "reasoning"):
                if name in delta:
                    streamed[name] = streamed.get(name, "") + delta[name]
            for part in delta.get("tool_calls", ()):
                call = calls.setdefault(part["index"], {"function": {"name": "", "arguments": ""}})
                call["function"]["name"] += part["function"].get("name", "")
                call["function"]["arguments"] += part["function"]["arguments"]
            reasons.append(piece["finish_reason"])
            tokens += piece.get("token_ids", ())
            logprobs += (piece["logprobs"] or {"content": ()})["content"]
        message = choice["message"]
        assert streamed["content"] == (message["content"] or "")
        assert streamed.get("reasoning_content") == message.get("reasoning_content")
        assert streamed.get("reasoning") == message.get("reasoning")
        assert [call["function"] for call in calls.values()] == [
            call["function"] for call in message.get("tool_calls", ())
        ]
        assert [reason for reason in reasons if reason] == [choice["finish_reason"]]
        assert tokens == choice.get("token_ids", [])
        assert logprobs == (choice["logprobs"] or {"content": []})["content"]
    return whole


def test_calls(calling: Client) -> None:
    answer = ask(calling, TWO_CALLS, tools=[WEATHER, TIME])
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "Let me see."
    first, second = message["tool_calls"]
    assert first["function"] == {"name": "get_weather", "arguments": ROME}
    assert second["function"] == {"name": "get_time", "arguments": "{}"}
    assert (first["type"], first["id"][:5]) == ("function", "call_")
    assert first["id"] != second["id"]


def test_a_call_alone_has_no_content(calling: Client) -> None:
    message = ask(calling, CALL, tools=[WEATHER])["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"]) == 1


def test_one_call_at_a_time(calling: Client) -> None:
    answer = ask(calling, TWO_CALLS, tools=[WEATHER, TIME], parallel_tool_calls=False)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": ROME}


@pytest.mark.parametrize("body", [{}, {"tools": [WEATHER], "tool_choice": "none"}])
def test_without_tools_everything_is_words(calling: Client, body: dict[str, Any]) -> None:
    choice = ask(calling, CALL, **body)["choices"][0]
    assert choice["message"]["content"] == CALL
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


def test_words_with_tools(calling: Client) -> None:
    choice = ask(calling, " Hello. \n", tools=[WEATHER], n=2)["choices"][1]
    assert choice["message"]["content"] == " Hello. \n"
    assert choice["finish_reason"] == "stop"


def test_a_call_that_is_cut_off(client: Client) -> None:
    client.engine.template_source = "<tool_call>"
    choice = ask(client, CALL[:-17], tools=[WEATHER])["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == ROME[:-3]


def test_arguments_are_streamed_as_they_are_written(calling: Client) -> None:
    messages = [{"role": "user", "content": CALL}]
    body = {"messages": messages, "max_tokens": len(CALL), "stream": True, "tools": [WEATHER]}
    deltas = [chunk["choices"][0]["delta"] for chunk in events(calling.post(PATH, body))]
    pieces = [part for delta in deltas for part in delta.get("tool_calls", ())]
    assert pieces[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert [piece["function"]["arguments"] for piece in pieces[1:]] == list(ROME)
    assert all("id" not in piece for piece in pieces[1:])


def test_every_token_is_told(calling: Client) -> None:
    body = {"tools": [WEATHER, TIME], "return_token_ids": True, "logprobs": True}
    choice = ask(calling, TWO_CALLS, **body)["choices"][0]
    assert choice["token_ids"] == [ord(letter) for letter in TWO_CALLS]
    assert len(choice["logprobs"]["content"]) == len(TWO_CALLS)


def test_thoughts(thinking: Client) -> None:
    text = "<think>\nHm.\n</think>\n\nHello."
    answer = ask(thinking, text)
    message = answer["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "Hello.",
        "refusal": None,
        "reasoning_content": "Hm.",
        "reasoning": "Hm.",
    }
    counts = answer["usage"]["completion_tokens_details"]
    assert counts == {"reasoning_tokens": len("<think>\nHm.\n</think>")}


def test_thoughts_that_nobody_wants(thinking: Client) -> None:
    answer = ask(thinking, "<think>Hm.</think>Hello.", include_reasoning=False)
    message = answer["choices"][0]["message"]
    assert message["content"] == "Hello."
    assert "reasoning_content" not in message
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 18


def test_nothing_but_thoughts(thinking: Client) -> None:
    message = ask(thinking, "<think>Hm")["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (None, "Hm")


def test_words_of_a_model_that_thinks(thinking: Client) -> None:
    answer = ask(thinking, " Hello <think>.")
    assert answer["choices"][0]["message"]["content"] == " Hello <think>."
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_thoughts_that_the_prompt_begins(thinking: Client) -> None:
    """The fake template writes the message, so this prompt ends with the mark."""
    prompt = "ab</think>c<think>"
    messages = [{"role": "user", "content": prompt}]
    answer = thinking.post(PATH, {"messages": messages, "max_tokens": 11}).json()
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("ab", "c")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 10


def test_channels() -> None:
    client = Client(FakeEngine(template_source="<|channel|><|message|>", reason="stop"))
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.get_weather <|constrain|>json<|message|>{ROME}<|call|>"
    )
    answer = ask(client, text, tools=[WEATHER])
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == "Hm."
    assert message["tool_calls"][0]["function"]["arguments"] == ROME
    expected = len("<|channel|>analysis<|message|>Hm.<|end|>")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == expected
    text = "<|channel|>final<|message|>Hello.<|return|>"
    assert ask(client, text)["choices"][0]["message"]["content"] == "Hello."


def form_asked(client: Client, **body: Any) -> StructuredOutputs | None:
    client.chat("a", max_tokens=1, **body)
    form = client.engine.asked[-1].params.structured_outputs
    assert form is None or isinstance(form, StructuredOutputs)
    return form


def test_forms_reach_the_engine(calling: Client) -> None:
    assert form_asked(calling, tools=[WEATHER]) is None
    schema = {"type": "object"}
    form = form_asked(
        calling,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert form is not None
    assert form.json == '{"type":"object"}'
    form = form_asked(calling, structured_outputs={"choice": ["a", "b"]})
    assert form is not None
    assert form.choice == ("a", "b")
    named = {"type": "function", "function": {"name": "get_time"}}
    for choice, names in (("required", {"get_time", "get_weather"}), (named, {"get_time"})):
        form = form_asked(calling, tools=[WEATHER, TIME], tool_choice=choice)
        assert form is not None
        assert form.grammar is not None
        assert {name for name in ("get_time", "get_weather") if name in form.grammar} == names


def test_forms_wait_for_thoughts(thinking: Client) -> None:
    form = form_asked(thinking, structured_outputs={"regex": "a"})
    assert form is not None
    assert (form.after, form.unless_begun_by) == ("</think>", "<think>")


def test_messages_with_calls_reach_the_template(client: Client, engine: FakeEngine) -> None:
    messages = [
        {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "x", "content": "a"},
    ]
    error = client.refused(PATH, 400, messages=messages)
    assert "there is no role 'tool'" in error["message"]
    messages[1]["role"] = "user"
    assert client.post(PATH, {"messages": messages, "max_tokens": 1}).status_code == 200


def test_the_parser_can_be_chosen() -> None:
    config = ServerConfig(tool_parser="llama3_json")
    client = Client(FakeEngine(reason="stop"), config=config)
    text = f'{{"name": "get_weather", "parameters": {ROME}}}'
    message = ask(client, text, tools=[WEATHER])["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == ROME
    with pytest.raises(ConfigError, match="no tool parser 'x'; choose one of harmony"):
        create_app(FakeEngine(), model_names=("fake",), config=ServerConfig(tool_parser="x"))


# The vendor's client


class Weather(BaseModel):
    """What a model has to say of weather."""

    city: Literal["Rome", "Pisa"]
    degrees: int
    rain: bool


def test_the_client_collects_streamed_calls() -> None:
    engine = FakeEngine(template_source="<tool_call>", reason="stop")
    tools: Any = [WEATHER, TIME]
    with running(engine) as url:
        api = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with api.chat.completions.stream(
            model="fake",
            messages=[{"role": "user", "content": TWO_CALLS}],
            tools=tools,
            max_completion_tokens=len(TWO_CALLS),
        ) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    choice = final.choices[0]
    assert choice.finish_reason == "tool_calls"
    names = [call.function.name for call in choice.message.tool_calls or ()]
    assert names == ["get_weather", "get_time"]


# A real model


@pytest.fixture
def api(demo: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{demo}/v1", api_key="none", max_retries=0)


THING = {"schema": {"type": "thing"}}
GONE = {"type": "object", "properties": {"a": {"$ref": "#/gone"}}}
HOT: Any = {"temperature": 1.5, "seed": 3, "max_completion_tokens": 80}
QUESTION: Any = [{"role": "user", "content": "What is the weather in Rome?"}]


@pytest.mark.model
def test_pydantic_models_are_answered(api: openai.OpenAI) -> None:
    answer = api.chat.completions.parse(model="fake", messages=QUESTION, response_format=Weather, **HOT)
    assert isinstance(answer.choices[0].message.parsed, Weather)


@pytest.mark.model
def test_pydantic_models_are_streamed(api: openai.OpenAI) -> None:
    with api.chat.completions.stream(
        model="fake", messages=QUESTION, response_format=Weather, **HOT
    ) as stream:
        for _ in stream:
            pass
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(parsed, Weather)


@pytest.mark.model
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_calls_that_must_be(api: openai.OpenAI, choice: Any, streams: bool) -> None:
    body: Any = {
        "model": "fake",
        "messages": QUESTION,
        "tools": [WEATHER],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        **HOT,
    }
    if streams:
        with api.chat.completions.stream(**body) as stream:
            for _ in stream:
                pass
            answer: Any = stream.get_final_completion()
    else:
        answer = api.chat.completions.create(**body)
    (call,) = answer.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather"
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("C", "F")
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.model
@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {**THING, "name": "x"},
                }
            },
            "response_format",
            "thing",
        ),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "unclosed group"),
        ({"structured_outputs": {"grammar": "start: b"}}, "structured_outputs", "b"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": GONE}}],
                "tool_choice": "required",
            },
            "tools",
            "gone",
        ),
    ],
)
def test_impossible_forms(api: openai.OpenAI, body: dict[str, Any], param: str, part: str) -> None:
    with pytest.raises(openai.BadRequestError, match=part) as caught:
        api.chat.completions.create(model="fake", messages=QUESTION, extra_body=body)
    assert caught.value.param == param


@pytest.mark.model
def test_forms_side_by_side_are_as_they_are_alone(demo: str) -> None:
    forms: list[dict[str, Any]] = [
        {"structured_outputs": {"regex": "[a-z]{3,8}"}},
        {"structured_outputs": {"choice": ["rain", "sun"]}},
        {"response_format": {"type": "json_object"}},
        {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False},
        {},
    ]

    async def all_at_once() -> list[Any]:
        api = openai.AsyncOpenAI(base_url=f"{demo}/v1", api_key="none", max_retries=0)

        async def one(form: dict[str, Any]) -> Any:
            answer = await api.chat.completions.create(
                model="fake",
                messages=QUESTION,
                temperature=1.2,
                seed=5,
                max_completion_tokens=24,
                extra_body={**form, "return_token_ids": True},
            )
            return answer.choices[0].model_extra

        alone = [await one(form) for form in forms]
        together = await asyncio.gather(*map(one, forms))
        return [alone, together]

    alone, together = asyncio.run(all_at_once())
    assert [choice["token_ids"] for choice in alone] == [choice["token_ids"] for choice in together]
