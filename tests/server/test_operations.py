"""Health, readiness and sleep."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.server.conftest import Client, error_of
from tests.server.fake_engine import FakeEngine
from tokenmill.config import ServerConfig
from tokenmill.errors import EngineDeadError
from tokenmill.server.app import create_app
from tokenmill.server.controls import Controls


@pytest.mark.parametrize("path", ["/health", "/ping", "/ready"])
def test_health_follows_the_engine(path: str, engine: FakeEngine) -> None:
    client = Client(engine, config=ServerConfig(step_timeout_s=5.0))
    assert client.request("GET", path).json() == {"status": "ok"}
    engine.busy_s = 4.9
    assert client.request("GET", path).status_code == 200
    engine.busy_s = 5.1
    response = client.request("GET", path)
    assert (response.status_code, response.json()) == (503, {"status": "hanging"})
    engine.die()
    response = client.request("GET", path)
    assert (response.status_code, response.json()) == (503, {"status": "dead"})


def test_a_server_that_stops_is_healthy_but_not_ready(engine: FakeEngine) -> None:
    controls = Controls()
    client = Client(engine, controls=controls)
    controls.gate.close("draining", "the server is stopping", 7)
    assert client.request("GET", "/health").status_code == 200
    response = client.request("GET", "/ready")
    assert (response.status_code, response.json()) == (503, {"status": "draining"})
    assert response.headers["retry-after"] == "7"


def test_sleep_must_be_enabled(client: Client) -> None:
    for method, path in (("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping")):
        assert client.request(method, path).status_code == 404


def test_sleep_and_wake(engine: FakeEngine) -> None:
    client = Client(engine, config=ServerConfig(enable_sleep=True))
    assert client.request("GET", "/is_sleeping").json() == {"is_sleeping": False}
    asleep = client.request("POST", "/sleep?level=1")
    assert asleep.json() == {"is_sleeping": True, "freed_bytes": 4096}
    assert engine.memory_given_back == 1
    assert client.request("GET", "/is_sleeping").json() == {"is_sleeping": True}
    response = client.post("/v1/completions", {"prompt": "a"})
    assert response.status_code == 503
    assert error_of(response)["code"] == "asleep"
    assert client.request("GET", "/health").status_code == 200
    assert client.request("GET", "/ready").status_code == 503
    assert client.request("POST", "/wake_up").json() == {"is_sleeping": False}
    client.complete(prompt="a", max_tokens=1)


def test_weights_can_not_be_dropped(engine: FakeEngine) -> None:
    client = Client(engine, config=ServerConfig(enable_sleep=True))
    response = client.request("POST", "/sleep?level=2")
    assert response.status_code == 400
    assert error_of(response)["param"] == "level"
    assert client.request("GET", "/is_sleeping").json() == {"is_sleeping": False}


def test_sleep_needs_a_key_like_everything_else(engine: FakeEngine) -> None:
    client = Client(engine, config=ServerConfig(enable_sleep=True, api_keys=("k",)))
    assert client.request("POST", "/sleep").status_code == 401


def test_sleep_that_fails_leaves_the_server_awake(engine: FakeEngine) -> None:
    async def dead() -> int:
        raise EngineDeadError("the engine stopped")

    engine.give_back_memory = dead  # type: ignore[method-assign]
    client = Client(engine, config=ServerConfig(enable_sleep=True))
    assert client.request("POST", "/sleep").status_code == 503
    assert client.request("GET", "/is_sleeping").json() == {"is_sleeping": False}


def test_sleep_waits_for_running_requests() -> None:
    engine = FakeEngine(pace=0.02)
    app = create_app(engine, model_names=("fake",), config=ServerConfig(enable_sleep=True))

    async def test() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            body = {"prompt": "a", "max_tokens": 10}
            running = asyncio.ensure_future(client.post("/v1/completions", json=body))
            while not engine.asked:
                await asyncio.sleep(0.001)
            asleep = await client.post("/sleep")
            assert asleep.status_code == 200
            assert running.done()
            assert (await running).json()["usage"]["completion_tokens"] == 10

    asyncio.run(test())
    assert engine.asked[0].ended == "finished"
