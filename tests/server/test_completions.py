from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.server.conftest import Client, error_of, events, running
from tests.server.fake_engine import FakeEngine
from tokenmill.engine.sampling_params import SamplingParams

PATH = "/v1/completions"


def test_one_prompt(client: Client) -> None:
    answer = client.complete(model="fake", prompt="abc", max_tokens=5)
    assert answer["object"] == "text_completion"
    assert answer["model"] == "fake"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {"index": 0, "text": "abcab", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_sixteen_tokens_unless_asked_otherwise(client: Client) -> None:
    assert client.complete(prompt="a")["choices"][0]["text"] == "a" * 16


@pytest.mark.parametrize("prompt", [[97, 98], [[97, 98]], ["ab"]])
def test_forms_of_a_prompt(client: Client, prompt: Any) -> None:
    assert client.complete(prompt=prompt, max_tokens=2)["choices"][0]["text"] == "ab"


def test_several_prompts_and_answers(client: Client) -> None:
    answer = client.complete(prompt=["ab", "cd"], n=2, max_tokens=2)
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [
        (0, "ab"), (1, "ab"), (2, "cd"), (3, "cd"),
    ]  # fmt: skip
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == 8


def test_stream(client: Client) -> None:
    chunks = events(client.post(PATH, {"prompt": "abc", "max_tokens": 3, "stream": True}))
    assert [c["choices"][0]["text"] for c in chunks] == ["a", "b", "c"]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, "length"]
    assert len({c["id"] for c in chunks}) == 1
    assert all("usage" not in c for c in chunks)


def test_stream_of_several(client: Client) -> None:
    body = {
        "prompt": ["ab", "cd"],
        "n": 2,
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    chunks = events(client.post(PATH, body))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    assert chunks[-1]["usage"]["prompt_tokens"] == 4
    texts = ["", "", "", ""]
    for chunk in chunks[:-1]:
        assert chunk["usage"] is None
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["ab", "ab", "cd", "cd"]


def test_echo(client: Client) -> None:
    assert client.complete(prompt="ab", echo=True, max_tokens=1)["choices"][0]["text"] == "aba"
    assert client.complete(prompt=[97, 98], echo=True, max_tokens=1)["choices"][0]["text"] == "aba"
    chunks = events(client.post(PATH, {"prompt": "ab", "echo": True, "max_tokens": 2, "stream": True}))
    assert [c["choices"][0]["text"] for c in chunks] == ["aba", "b"]


def test_logprobs(client: Client) -> None:
    logprobs = client.complete(prompt="ab", logprobs=2, max_tokens=2)["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"a": -0.5, "b": -9999.0}, {"b": -0.5, "c": -9999.0}],
        "text_offset": [0, 1],
    }


def test_logprobs_of_the_chosen_token_only(client: Client) -> None:
    logprobs = client.complete(prompt="ab", logprobs=0, max_tokens=1)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-0.5]
    assert logprobs["top_logprobs"] == [None]


def test_logprobs_in_a_stream(client: Client) -> None:
    body = {"prompt": "ab", "logprobs": 1, "max_tokens": 2, "stream": True}
    parts = [c["choices"][0]["logprobs"] for c in events(client.post(PATH, body))]
    assert [p["tokens"] for p in parts] == [["a"], ["b"]]
    assert [p["text_offset"] for p in parts] == [[0], [1]]
    assert parts[0]["top_logprobs"] == [{"a": -0.5}]


def test_scoring_a_prompt(client: Client) -> None:
    answer = client.complete(prompt="abc", echo=True, logprobs=1, max_tokens=0)
    choice = answer["choices"][0]
    assert choice["text"] == "abc"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 0


def test_echo_with_logprobs_in_a_stream(client: Client) -> None:
    body = {"prompt": "ab", "echo": True, "logprobs": 1, "max_tokens": 2, "stream": True}
    first, second = (c["choices"][0] for c in events(client.post(PATH, body)))
    assert (first["text"], second["text"]) == ("aba", "b")
    assert first["logprobs"]["tokens"] == ["a", "b", "a"]
    assert first["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert first["logprobs"]["text_offset"] == [0, 1, 2]
    assert second["logprobs"]["tokens"] == ["b"]
    assert second["logprobs"]["text_offset"] == [3]


def test_scoring_a_prompt_in_a_stream(client: Client) -> None:
    body = {"prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 0, "stream": True}
    (only,) = (c["choices"][0] for c in events(client.post(PATH, body)))
    assert only["text"] == "abc"
    assert only["logprobs"]["tokens"] == ["a", "b", "c"]
    assert only["finish_reason"] == "length"


def test_prompt_logprobs(client: Client, engine: FakeEngine) -> None:
    answer = client.complete(prompt=["ab", "c"], prompt_logprobs=1, max_tokens=1)
    shown = [choice["prompt_logprobs"] for choice in answer["choices"]]
    b = {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}
    assert shown == [[None, b], [None]]
    assert engine.asked[0].params.prompt_logprobs == 1
    two = client.complete(prompt="ab", prompt_logprobs=2, max_tokens=1)["choices"][0]
    assert list(two["prompt_logprobs"][1]) == ["98", "99"]
    assert two["prompt_logprobs"][1]["99"]["logprob"] == -9999.0
    assert "prompt_logprobs" not in client.complete(prompt="ab")["choices"][0]


def test_echoed_logprobs_and_prompt_logprobs_ask_for_the_larger(
    client: Client, engine: FakeEngine
) -> None:
    body = {"prompt": "ab", "echo": True, "max_tokens": 1}
    choice = client.complete(**body, logprobs=1, prompt_logprobs=2)["choices"][0]
    assert engine.asked[0].params.prompt_logprobs == 2
    assert choice["logprobs"]["top_logprobs"] == [None, {"b": -0.5}, {"a": -0.5}]
    assert len(choice["prompt_logprobs"][1]) == 2
    choice = client.complete(**body, logprobs=2, prompt_logprobs=0)["choices"][0]
    assert engine.asked[1].params.prompt_logprobs == 2
    assert list(choice["prompt_logprobs"][1]) == ["98"]


def test_usage_in_every_piece(client: Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "abc", "max_tokens": 3, "stream": True, "stream_options": options}
    chunks = events(client.post(PATH, body))
    assert [c["usage"]["completion_tokens"] for c in chunks] == [1, 2, 3, 3]
    assert all(c["usage"]["prompt_tokens"] == 3 for c in chunks)
    assert chunks[-1]["choices"] == []


def test_token_ids_in_a_stream(client: Client) -> None:
    body = {"prompt": ["ab", "c"], "max_tokens": 2, "stream": True, "return_token_ids": True}
    pieces: dict[int, list[Any]] = {0: [], 1: []}
    for chunk in events(client.post(PATH, body)):
        pieces[chunk["choices"][0]["index"]].append(chunk["choices"][0])
    assert [p["token_ids"] for p in pieces[0]] == [[97], [98]]
    assert pieces[0][0]["prompt_token_ids"] == [97, 98]
    assert pieces[1][0]["prompt_token_ids"] == [99]
    assert all("prompt_token_ids" not in p for part in pieces.values() for p in part[1:])


def test_the_beginning_of_a_prompt_may_be_cut(client: Client, engine: FakeEngine) -> None:
    body = {"truncate_prompt_tokens": 2, "max_tokens": 1, "echo": True}
    assert client.complete(prompt="abcd", **body)["choices"][0]["text"] == "cdc"
    assert client.complete(prompt=[97, 98, 99], **body)["choices"][0]["text"] == "bcb"
    assert engine.asked[0].prompt == {"prompt": "abcd", "prompt_token_ids": [99, 100]}
    # What fits beside the answer.
    client.complete(prompt="a" * 5000, truncate_prompt_tokens=-1, max_tokens=10)
    assert len(engine.asked[2].prompt["prompt_token_ids"]) == 990


def test_without_special_tokens(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def encode(self: Any, text: str, add_special_tokens: bool = True) -> list[int]:
        asked.append(add_special_tokens)
        return [97]

    monkeypatch.setattr("tests.server.fake_engine.FakeTokenizer.encode", encode)
    client.complete(prompt="a", add_special_tokens=False, max_tokens=1)
    assert asked == [False]


@pytest.fixture
def fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {"<fim_prefix>": 80, "<fim_suffix>": 83, "<fim_middle>": 77, "<|endoftext|>": 69}
    monkeypatch.setattr(
        "tests.server.fake_engine.FakeTokenizer.token_to_id", lambda self, name: marks.get(name)
    )


@pytest.mark.usefixtures("fills_in")
def test_suffix(client: Client, engine: FakeEngine) -> None:
    answer = client.complete(prompt="ab", suffix="c", max_tokens=6, stop_token_ids=[3])
    assert answer["choices"][0]["text"] == "PabScM"
    assert engine.asked[0].prompt == [80, 97, 98, 83, 99, 77]
    assert engine.asked[0].params.stop_token_ids == (3, 69)
    assert answer["usage"]["prompt_tokens"] == 6
    # The cursor may stand at the beginning; what ends the text may be ignored.
    client.complete(prompt=["", "x"], suffix="c", max_tokens=2, ignore_eos=True)
    prompts = sorted(asked.prompt for asked in engine.asked[1:])
    assert prompts == [[80, 83, 99, 77], [80, 120, 83, 99, 77]]
    assert not engine.asked[1].params.stop_token_ids
    chunks = events(client.post(PATH, {"prompt": "a", "suffix": "c", "max_tokens": 2, "stream": True}))
    assert "".join(c["choices"][0]["text"] for c in chunks) == "Pa"


def test_suffix_needs_a_model_that_fills_in(client: Client) -> None:
    error = client.refused(PATH, 400, prompt="a", suffix="b")
    assert error["param"] == "suffix"
    assert "no tokens for it" in error["message"]
    assert client.engine.asked == []


def test_openai_client_reads_what_is_more_than_its_own(engine: FakeEngine) -> None:
    with running(engine) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
        answer = client.completions.create(
            model="fake", prompt="ab", max_tokens=2, echo=True, logprobs=1, n=2, best_of=2,
            logit_bias={"97": 1}, extra_body={"prompt_logprobs": 1, "return_token_ids": True},
        )  # fmt: skip
        choice: Any = answer.choices[1]
        assert choice.text == "abab"
        assert choice.logprobs.tokens == ["a", "b", "a", "b"]
        assert choice.token_ids == choice.prompt_token_ids == [97, 98]
        assert choice.prompt_logprobs[1]["98"]["rank"] == 1
        stream = client.completions.create(
            model="fake", prompt="ab", max_tokens=2, stream=True,
            stream_options={"include_usage": True}, extra_body={"return_token_ids": True},
        )  # fmt: skip
        pieces = list(stream)
        assert [p.choices[0].text for p in pieces[:-1]] == ["a", "b"]
        assert pieces[-1].usage is not None
        assert pieces[-1].usage.completion_tokens == 2


def test_token_ids(client: Client) -> None:
    choice = client.complete(prompt="ab", max_tokens=3, return_token_ids=True)["choices"][0]
    assert choice["token_ids"] == [97, 98, 97]
    assert choice["prompt_token_ids"] == [97, 98]


def test_parameters_reach_the_engine(client: Client, engine: FakeEngine) -> None:
    client.complete(
        prompt="a", max_tokens=3, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=11, stop="x",
        presence_penalty=0.1, frequency_penalty=0.2, repetition_penalty=1.1, min_tokens=2,
        ignore_eos=True, logit_bias={"5": -100}, stop_token_ids=[3], cache_salt="mine", priority=-4,
        bad_words=["no"], skip_special_tokens=False, include_stop_str_in_output=True, user="me",
    )  # fmt: skip
    asked = engine.asked[0]
    params = asked.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 7, 0.1)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (
        0.1,
        0.2,
        1.1,
    )
    assert (params.seed, params.max_tokens, params.min_tokens, params.ignore_eos) == (11, 3, 2, True)
    assert (params.stop, params.stop_token_ids, params.bad_words) == (("x",), (3,), ("no",))
    assert params.logit_bias == {5: -100.0}
    assert (params.skip_special_tokens, params.include_stop_str_in_output) == (False, True)
    assert (asked.cache_salt, asked.priority) == ("mine", -4)


def test_null_is_absent(client: Client, engine: FakeEngine) -> None:
    client.complete(prompt="a", temperature=None, stop=None, n=None, logprobs=None, stream=None)
    assert engine.asked[0].params.temperature == 1.0


def test_recommended_parameters_are_the_defaults() -> None:
    engine = FakeEngine(default_sampling_params=SamplingParams(temperature=0.2, top_k=9))
    Client(engine).complete(prompt="a", top_k=3)
    assert (engine.asked[0].params.temperature, engine.asked[0].params.top_k) == (0.2, 3)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a"] * 257}, "prompt"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 129}, "n"),
        ({"prompt": "a", "n": 1.5}, "n"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens"),
        ({"prompt": "a", "min_tokens": 20}, "min_tokens"),
        ({"prompt": "a", "logprobs": -1}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "stop": [1]}, "stop"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"1": "x"}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [1]}, "logit_bias"),
        ({"prompt": "a", "stream": "yes"}, "stream"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "a", "stream": True, "stream_options": {"include_usage": 1}},
         "stream_options.include_usage"),
        ({"prompt": "a", "stream": True, "stream_options": {"continuous_usage_stats": 1}},
         "stream_options.continuous_usage_stats"),
        ({"prompt": "a", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ({"prompt": "a", "suffix": 3}, "suffix"),
        ({"prompt": [97], "suffix": "b"}, "suffix"),
        ({"prompt": "a", "suffix": "b", "echo": True}, "suffix"),
        ({"prompt": "a", "suffix": "b", "truncate_prompt_tokens": 5}, "suffix"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 4}, "best_of"),
        ({"prompt": "a", "best_of": 1, "n": 2}, "best_of"),
        ({"prompt": "a", "guided_json": {"type": "object"}}, "guided_json"),
        ({"prompt": "a", "model": 3}, "model"),
        ({"prompt": "a", "cache_salt": 3}, "cache_salt"),
        ({"prompt": "a", "seed": "x"}, "seed"),
    ],
)  # fmt: skip
def test_wrong_fields(client: Client, body: dict[str, Any], param: str) -> None:
    error = client.refused(PATH, 400, **body)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert client.engine.asked == []


def test_unknown_fields_are_ignored(client: Client) -> None:
    client.complete(prompt="a", something_new=1, best_of=1, suffix=None)
    client.complete(prompt="a", n=2, best_of=2, suffix="")


def test_a_prompt_that_the_engine_refuses(client: Client) -> None:
    error = client.refused(PATH, 400, prompt="a!")
    assert "too high" in error["message"]
    # One prompt of several: the others are dropped.
    client.refused(PATH, 400, prompt=["abc", "a!"], max_tokens=500)
    assert [asked.ended for asked in client.engine.asked[1:]] == ["dropped", None]
    # In a stream, before anything was sent: still a status.
    client.refused(PATH, 400, prompt="a!", stream=True)


def test_an_engine_that_dies(client: Client) -> None:
    error = client.refused(PATH, 503, prompt="a?")
    assert error["type"] == "service_unavailable_error"


def test_an_engine_that_dies_within_a_stream(client: Client) -> None:
    chunks = events(client.post(PATH, {"prompt": "ab?", "stream": True}))
    assert [c["choices"][0]["text"] for c in chunks[:-1]] == ["a", "b", "?"]
    assert chunks[-1]["error"]["message"] == "the engine stopped"


def test_an_error_of_our_own(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(client.engine, "generate", broken)
    error = client.refused(PATH, 500, prompt="a")
    assert error["type"] == "internal_server_error"
    assert "secret" not in error["message"]


def test_another_model(client: Client) -> None:
    error = client.refused(PATH, 404, prompt="a", model="gpt")
    assert error["code"] == "model_not_found"
    assert client.complete(prompt="a", model="other")["model"] == "other"


def test_characters(client: Client) -> None:
    text = client.complete(prompt="ä😀", max_tokens=2)["choices"][0]["text"]
    assert text == "ä😀"
    response = client.request(
        "POST", PATH, content=b'{"prompt": "\\ud800", "max_tokens": 1, "echo": true}'
    )
    assert response.json()["choices"][0]["text"] == "??"


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[1]", b'"text"', b"null", b"\xff", b'{"prompt": NaN}',
        b'{"temperature": Infinity}', b"[" * 100_000, b'{"seed": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_bodies_that_are_no_objects(client: Client, content: bytes) -> None:
    response = client.request("POST", PATH, content=content)
    assert response.status_code == 400
    error_of(response)
