from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from tests.server.fake_engine import FakeEngine
from tokenmill.config import ServerConfig
from tokenmill.server.app import create_app
from tokenmill.server.protocol import ServingEngine


class Client:
    """Talks to an application without a network."""

    def __init__(self, engine: FakeEngine, **options: Any) -> None:
        self.engine = engine
        self._app = create_app(engine, model_names=("fake", "other"), **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.request("POST", path, json=body)

    def complete(self, **body: Any) -> Any:
        """The answer of /v1/completions, which must be 200."""
        response = self.post("/v1/completions", body)
        assert response.status_code == 200, response.text
        return response.json()

    def chat(self, content: str, **body: Any) -> Any:
        """The answer of /v1/chat/completions to one message, which must be 200."""
        body["messages"] = [{"role": "user", "content": content}]
        response = self.post("/v1/chat/completions", body)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, path: str, status: int, **body: Any) -> dict[str, Any]:
        """The error of a request that must fail with this status."""
        response = self.post(path, body)
        assert response.status_code == status, response.text
        return error_of(response)


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, which must have the form that OpenAI's clients read."""
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


def events(response: httpx.Response) -> list[Any]:
    """The pieces of a stream, which must be well formed and end with [DONE]."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in response.headers
    parts = response.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    assert all(part.startswith("data: ") and "\n" not in part for part in parts[:-1])
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> Client:
    return Client(engine)


@contextmanager
def running(engine: ServingEngine, config: ServerConfig | None = None) -> Iterator[str]:
    """A real server on a free port of this machine; its address. The model is called "fake"."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = create_app(engine, model_names=("fake",), config=config)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def demo() -> Iterator[str]:
    """The address of a real server with a real model, which is called "fake" all the same."""
    from tokenmill.config import EngineConfig, LoadConfig, SchedulerConfig
    from tokenmill.engine.async_engine import AsyncEngine

    scheduler = SchedulerConfig(max_model_len=1024)
    engine = AsyncEngine.from_config(EngineConfig(LoadConfig("demo"), scheduler=scheduler))
    try:
        with running(engine) as address:
            yield address
    finally:
        engine.shutdown()
