from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Client
from tests.server.fake_engine import FakeEngine
from tokenmill import __version__
from tokenmill.engine.outputs import EngineStats


def ok(client: Client, path: str, **body: Any) -> Any:
    response = client.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def test_tokenize_a_text(client: Client) -> None:
    answer = ok(client, "/tokenize", prompt="abä", model="fake")
    assert answer == {"count": 3, "max_model_len": 1000, "tokens": [97, 98, 228], "token_strs": None}
    named = ok(client, "/tokenize", prompt="ab", return_token_strs=True)
    assert named["token_strs"] == ["a", "b"]
    assert ok(client, "/tokenize", prompt="")["count"] == 0


def test_special_tokens(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def encode(self: Any, text: str, add_special_tokens: bool = True) -> list[int]:
        asked.append(add_special_tokens)
        return [1]

    monkeypatch.setattr("tests.server.fake_engine.FakeTokenizer.encode", encode)
    messages = [{"role": "user", "content": "a"}]
    ok(client, "/tokenize", prompt="a")
    ok(client, "/tokenize", prompt="a", add_special_tokens=False)
    assert asked == [True, False]
    # A template has written them.
    ok(client, "/tokenize", messages=messages)
    assert asked[-1] is False
    ok(client, "/tokenize", messages=messages, add_special_tokens=True)
    assert asked[-1] is True


def test_tokenize_messages(client: Client) -> None:
    answer = ok(
        client,
        "/tokenize",
        messages=[{"role": "user", "content": "ab"}],
        chat_template_kwargs={"x": 1},
        return_token_strs=True,
    )
    assert "".join(answer["token_strs"]) == "ab+x=1"
    assert answer["count"] == len(answer["tokens"]) == 6


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ({"messages": []}, "messages"),
        ({"prompt": "a", "return_token_strs": "yes"}, "return_token_strs"),
        ({"prompt": "a", "model": "gpt"}, "model"),
    ],
)
def test_wrong_fields(client: Client, body: dict[str, Any], param: str) -> None:
    status = 404 if "model" in body else 400
    assert client.refused("/tokenize", status, **body)["param"] == param


def test_messages_that_the_template_refuses(client: Client) -> None:
    error = client.refused("/tokenize", 400, messages=[{"role": "judge", "content": "a"}])
    assert "no role" in error["message"]
    plain = Client(FakeEngine(has_template=False))
    error = plain.refused("/tokenize", 400, messages=[{"role": "user", "content": "a"}])
    assert "no chat template" in error["message"]


def test_detokenize(client: Client) -> None:
    assert ok(client, "/detokenize", tokens=[97, 228.0]) == {"prompt": "aä"}
    assert ok(client, "/detokenize", tokens=[]) == {"prompt": ""}
    for wrong in ({}, {"tokens": "ab"}, {"tokens": [-1]}, {"tokens": ["a"]}, {"tokens": [0x110000]}):
        assert client.refused("/detokenize", 400, **wrong)["param"] == "tokens"


def test_without_a_tokenizer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngine, "tokenizer", None)
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        assert "no tokenizer" in client.refused(path, 400, **body)["message"]


def test_version_ping_and_load(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.request("GET", "/version").json() == {"version": __version__}
    assert client.request("GET", "/ping").status_code == 200
    monkeypatch.setattr(client.engine, "stats", lambda: EngineStats(running=3, waiting=4))
    found = client.request("GET", "/load").json()
    assert found == {"server_load": 7, "running": 3, "waiting": 4}
    client.engine.die()
    assert client.request("GET", "/ping").status_code == 503
