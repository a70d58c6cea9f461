"""Ids of requests, and the lines of the log."""

from __future__ import annotations

import logging

import pytest

from tests.server.conftest import Client
from tests.server.fake_engine import FakeEngine
from tokenmill.config import ServerConfig

SECRET = "a very private matter"


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tokenmill.requests"]


@pytest.mark.parametrize("given", ["abc-1.2_3:4", "0" * 128])
def test_the_clients_id_comes_back(given: str, client: Client) -> None:
    response = client.request("GET", "/health", headers={"x-request-id": given})
    assert response.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "a" * 129, "a\u00e9"])
def test_ids_that_could_do_harm_are_replaced(given: str, client: Client) -> None:
    response = client.request("GET", "/health", headers=[(b"x-request-id", given.encode())])
    assert len(response.headers["x-request-id"]) == 32


def test_refusals_have_ids_too(engine: FakeEngine) -> None:
    client = Client(engine, config=ServerConfig(api_keys=("k",)))
    first, second = (client.request("GET", "/v1/models") for _ in range(2))
    assert first.status_code == 401
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_for_each_request(
    stream: bool, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = Client(engine, config=ServerConfig(access_log=True))
    body = {"prompt": [SECRET, SECRET], "max_tokens": 5, "stream": stream}
    client.request("POST", "/v1/completions?key=hidden", json=body, headers={"x-request-id": "mine"})
    (line,) = logged(caplog)
    assert line.startswith("id=mine client=127.0.0.1 POST /v1/completions status=200 seconds=")
    assert "prompt_tokens=42 cached_tokens=2 generated_tokens=10" in line
    assert line.endswith("finished=length")
    assert SECRET not in line
    assert "hidden" not in line


def test_no_line_unless_asked(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client.complete(prompt="a", max_tokens=1)
    assert logged(caplog) == []


def test_paths_can_not_forge_lines(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = Client(engine, config=ServerConfig(access_log=True))
    client.request("GET", "/a%0Aid=forged%20b" + "c" * 1000)
    (line,) = logged(caplog)
    assert "\n" not in line
    assert r"/a\nid=forged%20b" in line
    assert len(line) < 400


def test_prompts_only_if_asked_for(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = Client(engine, config=ServerConfig(log_prompts=True))
    client.request(
        "POST",
        "/v1/completions",
        json={"prompt": SECRET + "\nid=forged", "max_tokens": 1},
        headers={"x-request-id": "mine"},
    )
    (line,) = logged(caplog)
    assert line == f"id=mine prompt='{SECRET}\\nid=forged'"
