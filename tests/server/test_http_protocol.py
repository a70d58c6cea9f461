"""Connections on which no request arrives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from tests.server.fake_engine import FakeEngine
from tokenmill.server import http_protocol
from tokenmill.server.app import create_app

REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """A server that waits a fifth of a second for the head of a request."""
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = create_app(FakeEngine(pace=0.05), model_names=("fake",))
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, http=http_protocol.ImpatientProtocol, ws="none"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side closes the connection without another word."""
    connection.settimeout(30)
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("begun", [b"", b"GET", REQUEST[:-2]])
def test_a_head_that_never_ends(begun: bytes, address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(begun)
        assert is_closed(connection)


def test_a_second_head_that_never_ends(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        connection.settimeout(30)
        connection.sendall(REQUEST)
        answer = b""
        while not answer.endswith(b'{"status":"ok"}'):
            answer += connection.recv(1000)
        connection.sendall(b"GET /")
        assert is_closed(connection)


def test_answers_may_take_longer(address: tuple[str, int]) -> None:
    body = b'{"prompt": "a", "max_tokens": 10}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    with socket.create_connection(address) as connection:
        connection.settimeout(30)
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"aaaaaaaaaa" in answer
