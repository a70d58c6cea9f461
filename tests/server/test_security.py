"""Who may ask: keys, names of the host, origins of pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.conftest import Client, error_of
from tests.server.fake_engine import FakeEngine
from tokenmill.config import ServerConfig
from tokenmill.errors import ConfigError
from tokenmill.server.security import ApiKeys, default_hosts, host_name, is_loopback

MODELS = ("GET", "/v1/models")


def guarded(**options: object) -> Client:
    return Client(FakeEngine(), config=ServerConfig(**options))  # type: ignore[arg-type]


def status(client: Client, method: str, path: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.request(method, path, headers=named).status_code


@pytest.mark.parametrize("key", ["first", "second"])
@pytest.mark.parametrize("header", ["authorization", "x_api_key"])
def test_every_key_opens_by_either_header(key: str, header: str) -> None:
    client = guarded(api_keys=("first", "second"))
    value = f"Bearer {key}" if header == "authorization" else key
    assert status(client, *MODELS, **{header: value}) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic first"},
        {"authorization": "first"},
        {"x_api_key": "firs"},
        {"x_api_key": ""},
        {"x_api_key": "first second"},
    ],
)
def test_without_a_key_nothing_opens(headers: dict[str, str]) -> None:
    client = guarded(api_keys=("first", "second"))
    for method, path in (MODELS, ("POST", "/v1/completions"), ("GET", "/metrics"), ("GET", "/nowhere")):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = client.request(method, path, headers=named)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert error_of(response)["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping"])
def test_health_needs_no_key(path: str) -> None:
    assert status(guarded(api_keys=("first",)), "GET", path) == 200


def test_a_key_that_is_no_ascii_is_refused_and_harms_nobody() -> None:
    client = guarded(api_keys=("first",))
    headers = [(b"x-api-key", b"\xff\xfe")]
    assert client.request("GET", "/v1/models", headers=headers).status_code == 401


def test_keys_do_not_show_in_the_settings() -> None:
    assert "secret" not in repr(ServerConfig(api_keys=("secret",)))


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "line\n"])
def test_keys_that_no_client_could_send(key: str) -> None:
    with pytest.raises(ConfigError, match="API key"):
        ServerConfig(api_keys=(key,))


def test_key_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# for the team\nold\n\n  padded  \n  # old ones\n")
    keys = ApiKeys(("given",), file)
    assert [
        keys.accept(key) for key in ("given", "old", "padded", "# for the team", "# old ones", "")
    ] == [
        *(True, True, True),
        *(False, False, False),
    ]
    file.write_text("new\n")
    assert not keys.accept("new")
    keys.reload()
    assert keys.accept("new")
    assert keys.accept("given")
    assert not keys.accept("old")


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n", b"\xff"])
def test_a_key_file_that_goes_bad_opens_nothing(
    content: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n")
    keys = ApiKeys((), file)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    keys.reload()
    assert keys.required
    assert keys.accept("old")
    assert "not reloaded" in caplog.text
    with pytest.raises(ConfigError, match="key file"):
        ApiKeys((), file)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("localhost.", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("localhost@evil.example", False),
        ("", False),
        ("[", False),
    ],
)
def test_host_names(host: str, allowed: bool) -> None:
    client = guarded(allowed_hosts=default_hosts("127.0.0.1"))
    response = client.request("GET", "/v1/models", headers={"host": host})
    assert response.status_code == (200 if allowed else 421)
    if not allowed:
        assert error_of(response)["code"] == "host_not_allowed"


def test_host_names_are_checked_before_keys_are() -> None:
    client = guarded(allowed_hosts=("here",), api_keys=("first",))
    assert status(client, *MODELS, host="there", x_api_key="first") == 421
    assert status(client, *MODELS, host="here", x_api_key="first") == 200


def test_names_of_an_address() -> None:
    assert default_hosts("0.0.0.0") is None
    assert default_hosts("::") is None
    assert default_hosts("Example.org") == ("localhost", "127.0.0.1", "::1", "example.org")
    assert host_name("[::1]:80") == "::1"
    assert is_loopback("127.0.0.2")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.168.0.1")


@pytest.mark.parametrize(
    ("origin", "answer"),
    [
        ("http://server", 200),
        ("https://server", 200),
        ("http://evil.example", 403),
        ("http://server:81", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_pages_of_others_can_not_post(origin: str, answer: int) -> None:
    client = guarded()
    response = client.request(
        "POST", "/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers={"origin": origin}
    )
    assert response.status_code == answer
    assert "access-control-allow-origin" not in response.headers


def test_pages_that_are_allowed() -> None:
    client = guarded(cors_origins=("http://friend.example",), api_keys=("first",))
    headers = {"origin": "http://friend.example"}
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    preflight = client.request("OPTIONS", "/v1/completions", headers={**headers, **ask})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "http://friend.example"
    body = {"prompt": "a", "max_tokens": 1}
    refused = client.request("POST", "/v1/completions", json=body, headers=headers)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "http://friend.example"
    headers["authorization"] = "Bearer first"
    assert client.request("POST", "/v1/completions", json=body, headers=headers).status_code == 200
    headers["origin"] = "http://evil.example"
    assert client.request("POST", "/v1/completions", json=body, headers=headers).status_code == 403


def test_every_page_if_asked_for() -> None:
    client = guarded(cors_origins=("*",))
    assert status(client, *MODELS, origin="http://anyone.example") == 200
    response = client.request(
        "POST",
        "/v1/completions",
        json={"prompt": "a", "max_tokens": 1},
        headers={"origin": "http://anyone.example"},
    )
    assert response.headers["access-control-allow-origin"] == "*"
