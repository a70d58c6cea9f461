"""What is taken up, and how long it may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.conftest import Client, error_of, events
from tests.server.fake_engine import FakeEngine
from tokenmill.config import ServerConfig
from tokenmill.server.admission import Gate
from tokenmill.server.controls import Controls


def test_a_full_queue(engine: FakeEngine) -> None:
    client = Client(engine, config=ServerConfig(max_queue=3))
    engine.waiting = 2
    assert client.post("/v1/completions", {"prompt": ["a"] * 5, "max_tokens": 1}).status_code == 200
    engine.waiting = 3
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/completions", {"prompt": "a", "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/embeddings", {"input": "a"}),
    ):
        response = client.post(path, body)
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) > 0
        assert error_of(response)["code"] == "queue_full"
    assert client.request("GET", "/v1/models").status_code == 200


def test_who_waits_only_for_the_next_step_is_not_in_the_queue(engine: FakeEngine) -> None:
    client = Client(engine, config=ServerConfig(max_queue=3))
    engine.max_running, engine.running = 10, 6
    for engine.waiting, status in ((6, 200), (7, 429)):
        assert client.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == status
    engine.running = 12  # a request that was let in with several answers
    for engine.waiting, status in ((2, 200), (3, 429)):
        assert client.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == status


def test_a_request_of_several_prompts_is_let_in_as_a_whole() -> None:
    class Filling(FakeEngine):
        async def generate(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            self.waiting += 1
            async for output in super().generate(*args, **kwargs):
                yield output

    client = Client(Filling(), config=ServerConfig(max_queue=2))
    answer = client.post("/v1/completions", {"prompt": ["a", "b", "c", "d"], "max_tokens": 1})
    assert [choice["text"] for choice in answer.json()["choices"]] == ["a", "b", "c", "d"]
    assert client.post("/v1/completions", {"prompt": "a"}).status_code == 429


def test_too_many_at_once(engine: FakeEngine) -> None:
    controls = Controls()
    client = Client(engine, config=ServerConfig(max_requests=1), controls=controls)
    assert client.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
    controls.gate.enter()
    assert client.refused("/v1/completions", 429, prompt="a")["code"] == "queue_full"
    assert client.request("GET", "/health").status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_closed_gate(path: str, engine: FakeEngine) -> None:
    controls = Controls()
    client = Client(engine, controls=controls)
    controls.gate.close("draining", "the server is stopping", 7)
    response = client.post(path, {})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "7"
    assert error_of(response)["code"] == "draining"
    controls.gate.open("draining")
    assert client.post(path, {}).status_code == 400


def test_a_gate_closed_twice_opens_when_both_reasons_are_gone() -> None:
    gate = Gate()
    gate.close("asleep", "it sleeps", 1)
    gate.close("draining", "it stops", 1)
    gate.open("asleep")
    assert gate.refusal is not None
    assert gate.refusal.code == "draining"
    gate.open("draining")
    gate.open("never closed")
    assert gate.refusal is None


def test_waiting_until_nobody_is_inside() -> None:
    async def test() -> None:
        gate = Gate()
        gate.enter()
        gate.enter()
        empty = asyncio.ensure_future(gate.empty())
        gate.leave()
        await asyncio.sleep(0)
        assert not empty.done()
        gate.leave()
        await empty

    asyncio.run(test())


def test_everyone_leaves_the_gate_whatever_happens(engine: FakeEngine) -> None:
    controls = Controls()
    client = Client(engine, controls=controls)
    for prompt in ("a", "a!", "a?", None):
        for stream in (False, True):
            client.post("/v1/completions", {"prompt": prompt, "max_tokens": 5, "stream": stream})
    assert controls.gate.in_flight == 0


def test_time_limit_of_an_answer() -> None:
    engine = FakeEngine(pace=0.02)
    client = Client(engine, config=ServerConfig(request_timeout_s=0.1))
    body = {"prompt": "a", "max_tokens": 100_000}
    error = client.refused("/v1/completions", 504, **body)
    assert error["code"] == "request_timeout"
    assert "0.1 seconds" in error["message"]
    pieces = events(client.post("/v1/completions", {**body, "stream": True}))
    assert len(pieces) > 1
    assert pieces[0]["choices"][0]["text"] == "a"
    assert pieces[-1]["error"]["code"] == "request_timeout"
    assert [asked.ended for asked in engine.asked] == ["dropped", "dropped"]
    assert client.complete(prompt="a", max_tokens=1)["choices"][0]["text"] == "a"


def test_time_limit_of_a_vector() -> None:
    engine = FakeEngine(pace=60.0)
    client = Client(engine, config=ServerConfig(request_timeout_s=0.05))
    assert client.refused("/v1/embeddings", 504, input="a")["code"] == "request_timeout"
    assert engine.vectored[0].ended == "dropped"


def test_time_limit_of_a_body(engine: FakeEngine) -> None:
    client = Client(engine, config=ServerConfig(body_timeout_s=0.05))

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"prompt": '
        await asyncio.sleep(0.2)
        yield b'"a"}'

    response = client.request("POST", "/v1/completions", content=slow())
    assert response.status_code == 408
    assert error_of(response)["code"] == "body_timeout"
    assert engine.asked == []


def test_a_body_in_time_may_be_answered_slowly() -> None:
    client = Client(FakeEngine(pace=0.02), config=ServerConfig(body_timeout_s=0.1))
    pieces = events(client.post("/v1/completions", {"prompt": "a", "max_tokens": 9, "stream": True}))
    assert len(pieces) == 9


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 3}, "n"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": 3, "echo": True}, "logprobs"),
    ],
)
def test_limits_of_fields(body: dict[str, Any], param: str, engine: FakeEngine) -> None:
    client = Client(engine, config=ServerConfig(max_n=2, max_logprobs=2))
    error = client.refused("/v1/completions", 400, prompt="a", max_tokens=1, **body)
    assert error["param"] == param
    assert "at most 2" in error["message"]
    assert engine.asked == []
    client.complete(prompt="a", max_tokens=1, n=2, logprobs=2)


def test_limit_of_a_prompt(engine: FakeEngine) -> None:
    client = Client(engine, config=ServerConfig(max_prompt_chars=10))
    client.complete(prompt="a" * 10, max_tokens=1)
    client.complete(prompt=[97] * 11, max_tokens=1)
    error = client.refused("/v1/completions", 400, prompt=["a", "a" * 11])
    assert error["code"] == "prompt_too_long"
    error = client.refused("/v1/embeddings", 400, input="a" * 11)
    assert error["code"] == "prompt_too_long"
