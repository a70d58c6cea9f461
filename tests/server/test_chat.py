from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Client, events
from tests.server.fake_engine import FakeEngine

PATH = "/v1/chat/completions"
USER = [{"role": "user", "content": "abc"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED_G = {"type": "function", "function": {"name": "g"}}
FIRST_CALL = "messages[0].tool_calls[0].function."


def allowed(mode: str, name: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}}]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_an_answer(client: Client, engine: FakeEngine) -> None:
    answer = client.chat("abc", max_tokens=4)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "abca", "refusal": None}
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
    assert answer["usage"]["total_tokens"] == 7
    assert engine.asked[0].prompt == {"prompt": "abc", "prompt_token_ids": [97, 98, 99]}


def test_length(client: Client, engine: FakeEngine) -> None:
    client.chat("a")
    client.chat("a", max_tokens=3)
    client.chat("a", max_tokens=3, max_completion_tokens=5)
    assert [asked.params.max_tokens for asked in engine.asked] == [None, 3, 5]


def test_stream(client: Client) -> None:
    chunks = events(client.post(PATH, {"messages": USER, "max_tokens": 2, "stream": True}))
    assert all(c["object"] == "chat.completion.chunk" for c in chunks)
    assert [c["choices"][0]["delta"] for c in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, "length"]


def test_stream_of_several_with_usage(client: Client) -> None:
    body = {
        "messages": USER,
        "n": 2,
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    chunks = events(client.post(PATH, body))
    roles = [
        c["choices"][0]["index"] for c in chunks if c["choices"] and "role" in c["choices"][0]["delta"]
    ]
    assert roles == [0, 1]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert chunks[0]["usage"] is None


def test_logprobs(client: Client) -> None:
    answer = client.chat("é", max_tokens=1, logprobs=True, top_logprobs=2)
    assert answer["choices"][0]["logprobs"]["content"] == [
        {
            "token": "é",
            "logprob": -0.5,
            "bytes": [0xC3, 0xA9],
            "top_logprobs": [
                {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
                {"token": "ê", "logprob": -9999.0, "bytes": [0xC3, 0xAA]},
            ],
        }
    ]
    answer = client.chat("a", max_tokens=1, logprobs=True)
    assert answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_logprobs_in_a_stream(client: Client) -> None:
    body = {"messages": USER, "max_tokens": 2, "stream": True, "logprobs": True}
    parts = [c["choices"][0]["logprobs"] for c in events(client.post(PATH, body))]
    assert parts[0] is None
    assert [p["content"][0]["token"] for p in parts[1:]] == ["a", "b"]


def test_options_reach_the_template(client: Client, engine: FakeEngine) -> None:
    client.chat("a", tools=[TOOL], chat_template_kwargs={"thinking": False})
    assert engine.asked[0].prompt["prompt"] == "a+tools+thinking=False"
    client.chat("a", tools=[TOOL], tool_choice="none")
    assert engine.asked[1].prompt["prompt"] == "a"


def test_token_ids(client: Client) -> None:
    answer = client.chat("ab", max_tokens=3, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == [97, 98, 97]
    assert answer["prompt_token_ids"] == [97, 98]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages"),
        ({"messages": USER, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": USER, "logprobs": 3}, "logprobs"),
        ({"messages": USER, "max_tokens": 0}, "max_tokens"),
        ({"messages": USER, "response_format": {"type": "yaml"}}, "response_format"),
        ({"messages": USER, "response_format": {"type": "json_schema"}}, "response_format"),
        ({"messages": USER, "response_format": "json"}, "response_format"),
        (
            {"messages": USER, "structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs",
        ),
        ({"messages": USER, "structured_outputs": {"xml": "a"}}, "structured_outputs"),
        ({"messages": USER, "tool_choice": "required"}, "tool_choice"),
        ({"messages": USER, "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": USER, "tools": [{"type": "web"}]}, "tools[0].type"),
        (
            {"messages": USER, "tools": [{**TOOL, "function": {"name": "a b"}}]},
            "tools[0].function.name",
        ),
        ({"messages": USER, "tools": [TOOL, TOOL]}, "tools"),
        ({"messages": USER, "tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        ({"messages": USER, "tools": [TOOL], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"messages": USER, "tools": [TOOL], "tool_choice": NAMED_G}, "tool_choice"),
        ({"messages": USER, "tools": [TOOL], "tool_choice": allowed("some", "f")}, "tool_choice"),
        ({"messages": USER, "tools": [TOOL], "tool_choice": allowed("auto", "g")}, "tool_choice"),
        ({"messages": USER, "tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, FIRST_CALL + "name"),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}
                ]
            },
            FIRST_CALL + "arguments",
        ),
        (
            {"messages": [{"role": "tool", "content": "", "tool_call_id": 3}]},
            "messages[0].tool_call_id",
        ),
        ({"messages": USER, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"messages": USER, "functions": [{"name": "f"}]}, "functions"),
        ({"messages": USER, "modalities": ["audio"]}, "modalities"),
        ({"messages": USER, "chat_template": "{{ 1 }}"}, "chat_template"),
        ({"messages": USER, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": USER, "tools": {}}, "tools"),
    ],
)
def test_wrong_fields(client: Client, body: dict[str, Any], param: str) -> None:
    assert client.refused(PATH, 400, **body)["param"] == param
    assert client.engine.asked == []


def test_messages_that_the_template_refuses(client: Client) -> None:
    error = client.refused(PATH, 400, messages=[{"role": "king", "content": "a"}])
    assert "no role 'king'" in error["message"]
    error = client.refused(PATH, 400, messages=[{"role": "king", "content": "a"}], stream=True)
    assert "no role 'king'" in error["message"]


def test_a_model_without_template() -> None:
    client = Client(FakeEngine(has_template=False))
    assert "/v1/completions" in client.refused(PATH, 400, messages=USER)["message"]


def test_text_response_format_is_fine(client: Client) -> None:
    client.chat("a", response_format={"type": "text"}, tool_choice="auto", modalities=["text"])


def test_prompt_logprobs(client: Client) -> None:
    answer = client.chat("ab", prompt_logprobs=1, max_tokens=1)
    b = {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}
    assert answer["prompt_logprobs"] == [None, b]
    assert "prompt_logprobs" not in client.chat("ab", max_tokens=1)
    messages = [{"role": "user", "content": "ab"}]
    error = client.refused(PATH, 400, messages=messages, prompt_logprobs=1, stream=True)
    assert error["param"] == "prompt_logprobs"


def test_token_ids_and_usage_in_every_piece(client: Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "ab"}],
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }
    chunks = events(client.post(PATH, body))
    assert chunks[0]["prompt_token_ids"] == [97, 98]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 1, 2, 2]


def test_best_of_must_equal_n(client: Client) -> None:
    messages = [{"role": "user", "content": "ab"}]
    assert client.refused(PATH, 400, messages=messages, best_of=3)["param"] == "best_of"
