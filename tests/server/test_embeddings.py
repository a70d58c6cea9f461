from __future__ import annotations

import asyncio
import base64
import math
import struct
from typing import Any

import openai
import pytest

from tests.server.conftest import Client, running
from tests.server.fake_engine import FakeEngine
from tokenmill.config import ServerConfig

PATH = "/v1/embeddings"
HALF = 1 / math.sqrt(2)


def ok(client: Client, path: str, **body: Any) -> Any:
    response = client.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def test_one_text(client: Client) -> None:
    answer = ok(client, PATH, input="ab", model="fake", user="me")
    assert answer["object"] == "list"
    assert answer["model"] == "fake"
    assert answer["id"].startswith("embd-")
    assert answer["data"] == [
        {"object": "embedding", "index": 0, "embedding": pytest.approx([0, HALF, HALF, 0])}
    ]
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "total_tokens": 2,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


@pytest.mark.parametrize(
    ("given", "count"),
    [("ab", 1), (["ab"], 1), ([97, 98], 1), ([[97, 98]], 1), (["ab", "ab"], 2), (["ab", [97, 98]], 2)],
)
def test_forms_of_input(client: Client, given: Any, count: int) -> None:
    data = ok(client, PATH, input=given)["data"]
    assert [entry["index"] for entry in data] == list(range(count))
    assert all(e["embedding"] == pytest.approx([0, HALF, HALF, 0]) for e in data)


def test_vectors_are_in_the_order_of_the_inputs(client: Client) -> None:
    data = ok(client, PATH, input=["d", "a", "b", "c"], normalize=False)["data"]
    assert [entry["embedding"].index(1.0) for entry in data] == [0, 1, 2, 3]


def test_base64(client: Client) -> None:
    data = ok(client, PATH, input="abb", encoding_format="base64", normalize=False)["data"]
    assert struct.unpack("<4f", base64.b64decode(data[0]["embedding"])) == (0, 1, 2, 0)


def test_options_reach_the_engine(client: Client, engine: FakeEngine) -> None:
    ok(
        client, PATH, input="abcd", dimensions=2, pooling="mean", normalize=False, priority=-3,
        cache_salt="mine",
    )  # fmt: skip
    call = engine.vectored[0]
    assert (call.params.dimensions, call.params.pooling, call.params.normalize) == (2, "mean", False)
    assert (call.priority, call.cache_salt, call.prompt) == (-3, "mine", "abcd")


def test_texts_that_are_too_long_are_cut_at_their_beginning(client: Client, engine: FakeEngine) -> None:
    for given in ("abcd", [97, 98, 99, 100]):
        ok(client, PATH, input=given, truncate_prompt_tokens=3)
    assert engine.vectored[0].prompt == {"prompt": "abcd", "prompt_token_ids": [98, 99, 100]}
    assert engine.vectored[1].prompt == [98, 99, 100]
    ok(client, PATH, input="a" * 5000, truncate_prompt_tokens=-1)
    assert len(engine.vectored[2].prompt["prompt_token_ids"]) == engine.max_model_len


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", 3]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "pooling": "cls"}, "pooling"),
        ({"input": "a", "normalize": 1}, "normalize"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
    ],
)  # fmt: skip
def test_wrong_fields(client: Client, body: dict[str, Any], param: str) -> None:
    assert client.refused(PATH, 400, **body)["param"] == param
    assert client.engine.vectored == []


def test_errors_of_the_engine(client: Client) -> None:
    assert "dimensions is 9" in client.refused(PATH, 400, input="a", dimensions=9)["message"]
    assert "too high" in client.refused(PATH, 400, input=["a", "b!"])["message"]
    assert client.refused(PATH, 503, input="die")["code"] == "engine_dead"
    assert client.refused(PATH, 404, input="a", model="gpt")["code"] == "model_not_found"


def test_one_bad_input_ends_the_others() -> None:
    engine = FakeEngine(pace=30)
    Client(engine).refused(PATH, 400, input=["a", "b!", "c"])
    assert [call.ended for call in engine.vectored] == ["dropped", None, "dropped"]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores(client: Client, path: str) -> None:
    answer = ok(client, path, text_1="ab", text_2=["ab", "a", "d"])
    assert answer["object"] == "list"
    assert answer["id"].startswith("score-")
    assert [(e["index"], e["object"]) for e in answer["data"]] == [(i, "score") for i in range(3)]
    assert [e["score"] for e in answer["data"]] == pytest.approx([1, HALF, 0])
    assert answer["usage"]["prompt_tokens"] == 6
    pairs = ok(client, path, text_1=["a", "b"], text_2=["a", "d"])["data"]
    assert [e["score"] for e in pairs] == pytest.approx([1, 0])
    assert len(ok(client, path, text_1="a", text_2="b")["data"]) == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_2": "a"}, "text_1"),
        ({"text_1": "a"}, "text_2"),
        ({"text_1": ["a", "b"], "text_2": "a"}, "text_1"),
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": "a", "text_2": [""]}, "text_2"),
        ({"text_1": "a", "text_2": [1]}, "text_2"),
        ({"text_1": "a", "text_2": ["a"] * 2049}, "text_2"),
    ],
)
def test_wrong_fields_of_scores(client: Client, body: dict[str, Any], param: str) -> None:
    assert client.refused("/score", 400, **body)["param"] == param


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank(client: Client, path: str) -> None:
    documents = ["d", "ab", {"text": "a"}, "ab"]
    answer = ok(client, path, query="ab", documents=documents)
    assert answer["id"].startswith("rerank-")
    assert [r["index"] for r in answer["results"]] == [1, 3, 2, 0]
    assert [r["relevance_score"] for r in answer["results"]] == pytest.approx([1, 1, HALF, 0])
    assert [r["document"] for r in answer["results"]] == [{"text": t} for t in ("ab", "ab", "a", "d")]
    assert answer["usage"]["total_tokens"] == 8
    short = ok(client, path, query="ab", documents=documents, top_n=2, return_documents=False)
    assert [set(r) for r in short["results"]] == [{"index", "relevance_score"}] * 2
    assert len(ok(client, path, query="ab", documents=documents, top_n=9)["results"]) == 4


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": "b"}, "documents"),
        ({"query": "a", "documents": [{"title": "b"}]}, "documents"),
        ({"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
    ],
)
def test_wrong_fields_of_reranking(client: Client, body: dict[str, Any], param: str) -> None:
    assert client.refused("/rerank", 400, **body)["param"] == param


def test_openai_client(engine: FakeEngine) -> None:
    with running(engine) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
        # Left alone, this client asks for base64 and decodes it.
        answer = client.embeddings.create(model="fake", input=["ab", "c"], dimensions=3)
        assert answer.data[0].embedding == pytest.approx([0, HALF, HALF])
        assert answer.data[1].embedding == pytest.approx([0, 0, 0])
        assert answer.usage.prompt_tokens == 3
        plain = client.embeddings.create(model="fake", input=[97, 98], encoding_format="float")
        assert plain.data[0].embedding == pytest.approx([0, HALF, HALF, 0])
        with pytest.raises(openai.BadRequestError, match="dimensions is 7"):
            client.embeddings.create(model="fake", input="a", dimensions=7)


def test_a_client_that_leaves_is_not_served() -> None:
    engine = FakeEngine(pace=60)

    async def main(address: str) -> None:
        client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        task = asyncio.create_task(client.embeddings.create(model="fake", input=["a", "b"]))
        while len(engine.vectored) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while any(call.ended is None for call in engine.vectored):
            await asyncio.sleep(0.01)

    with running(engine) as address:
        asyncio.run(asyncio.wait_for(main(address), 30))
    assert [call.ended for call in engine.vectored] == ["dropped", "dropped"]


def test_the_servers_limits_hold_for_vectors() -> None:
    client = Client(FakeEngine(), config=ServerConfig(max_prompt_chars=3))
    assert client.refused(PATH, 400, input=["abc", "abcd"])["code"] == "prompt_too_long"
    assert client.refused("/rerank", 400, query="a", documents=["abcd"])["code"] == "prompt_too_long"
    client = Client(FakeEngine(waiting=2), config=ServerConfig(max_queue=2))
    assert client.post(PATH, {"input": "a"}).status_code == 429
    client = Client(FakeEngine(pace=60), config=ServerConfig(request_timeout_s=0.05))
    assert client.refused(PATH, 504, input="a")["code"] == "request_timeout"
    assert [call.ended for call in client.engine.vectored] == ["dropped"]


def test_vectors_are_counted(client: Client) -> None:
    client.post(PATH, {"input": ["ab", "c"]})
    client.refused(PATH, 400, input="a!")
    figures = client.request("GET", "/metrics").text
    samples = dict(line.rsplit(" ", 1) for line in figures.splitlines() if not line.startswith("#"))

    def value(*parts: str) -> float:
        (found,) = (v for name, v in samples.items() if all(part in name for part in parts))
        return float(found)

    assert value("request_success_total", '"stop"') == 2
    assert value("request_success_total", '"error"') == 1
    assert value("request_prompt_tokens_sum") == 3
    assert value("request_generation_tokens_sum") == 0
