"""Over real connections: OpenAI's own client, and clients that leave."""

from __future__ import annotations

import json
import socket
import time

import httpx
import openai
import pytest

from tests.server.conftest import running
from tests.server.fake_engine import FakeEngine


def wait_for(engine: FakeEngine, ended: str) -> None:
    """Until the first request has ended, which must not take long."""
    for _ in range(500):
        if engine.asked and engine.asked[0].ended is not None:
            break
        time.sleep(0.01)
    assert engine.asked[0].ended == ended


def test_openai_client(engine: FakeEngine) -> None:
    with running(engine) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == ["fake"]
        completion = client.completions.create(model="fake", prompt="abc", max_tokens=4, logprobs=1)
        assert completion.choices[0].text == "abca"
        assert completion.choices[0].logprobs is not None
        assert completion.choices[0].logprobs.tokens == ["a", "b", "c", "a"]
        chat = client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "abc"}],
            max_completion_tokens=2,
            logprobs=True,
            top_logprobs=1,
            extra_body={"top_k": 5, "cache_salt": "s"},
        )
        assert chat.choices[0].message.content == "ab"
        assert chat.usage is not None
        assert chat.usage.total_tokens == 5
        assert engine.asked[-1].params.top_k == 5
        assert engine.asked[-1].cache_salt == "s"
        stream = client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "abc"}],
            max_tokens=3,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "abc"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 3


def test_openai_client_errors(engine: FakeEngine) -> None:
    with (
        running(engine) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
            client.completions.create(model="gpt", prompt="a")
        with pytest.raises(openai.BadRequestError, match="temperature") as caught:
            client.completions.create(model="fake", prompt="a", temperature=-1)
        assert caught.value.param == "temperature"
        with pytest.raises(openai.APIError, match="the engine stopped"):
            list(client.completions.create(model="fake", prompt="a?", stream=True))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_client_that_leaves_a_stream(path: str) -> None:
    engine = FakeEngine(pace=0.005)
    body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 100_000}
    with running(engine) as address:
        with httpx.stream("POST", address + path, json={**body, "stream": True}) as response:
            first = next(response.iter_lines())
            json.loads(first.removeprefix("data: "))
        wait_for(engine, "dropped")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_answer(stream: bool) -> None:
    engine = FakeEngine(pace=3600.0)
    body = {"prompt": ["a", "b"], "max_tokens": 3, "stream": stream}
    with running(engine) as address:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/v1/completions", json=body, timeout=0.5)
        wait_for(engine, "dropped")
        assert [asked.ended for asked in engine.asked] == ["dropped", "dropped"]


def test_a_client_that_leaves_disturbs_nobody() -> None:
    engine = FakeEngine(pace=0.001)
    with running(engine) as address:
        with httpx.stream(
            "POST",
            f"{address}/v1/completions",
            json={"prompt": "a", "max_tokens": 10**5, "stream": True},
        ) as response:
            next(response.iter_lines())
        done = httpx.post(f"{address}/v1/completions", json={"prompt": "ab", "max_tokens": 4})
        assert done.json()["choices"][0]["text"] == "abab"


def test_a_client_that_sends_too_much_reads_why(engine: FakeEngine) -> None:
    """It blocks while it sends, and looks for the answer only then."""
    size = 20 << 20
    with running(engine) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {size}\r\n\r\n"
            connection.sendall(head.encode() + b" " * size)
            assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
