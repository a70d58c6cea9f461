from __future__ import annotations

import pytest

from tests.server.conftest import Client, error_of
from tests.server.fake_engine import FakeEngine
from tokenmill.config import ServerConfig
from tokenmill.server.app import create_app


def test_health(client: Client, engine: FakeEngine) -> None:
    assert client.request("GET", "/health").status_code == 200
    engine.is_dead = True
    assert client.request("GET", "/health").status_code == 503


def test_models(client: Client) -> None:
    found = client.request("GET", "/v1/models").json()
    assert found["object"] == "list"
    assert [model["id"] for model in found["data"]] == ["fake", "other"]
    assert found["data"][0]["max_model_len"] == 1000


def test_a_model(client: Client) -> None:
    assert client.request("GET", "/v1/models/other").json()["id"] == "other"
    response = client.request("GET", "/v1/models/org/name")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


def test_unknown_paths_and_methods(client: Client) -> None:
    response = client.request("GET", "/v2")
    assert response.status_code == 404
    assert "/v2" in error_of(response)["message"]
    response = client.request("GET", "/v1/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    error_of(response)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large(engine: FakeEngine, chunked: bool) -> None:
    client = Client(engine, config=ServerConfig(max_body_bytes=100))

    async def pieces():  # type: ignore[no-untyped-def]
        for _ in range(50):
            yield b" " * 10

    content = pieces() if chunked else b" " * 101
    response = client.request("POST", "/v1/completions", content=content)
    assert response.status_code == 413
    assert error_of(response)["code"] == "body_too_large"
    assert client.post("/v1/completions", {"prompt": "a"}).status_code == 200


def test_a_server_needs_a_name(engine: FakeEngine) -> None:
    with pytest.raises(ValueError, match="name"):
        create_app(engine, model_names=())
