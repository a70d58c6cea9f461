"""A server process, and the signals that stop it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tokenmill.server.process import cut_off_stalled

LONG: dict[str, Any] = {"prompt": "a", "max_tokens": 100_000, "stream": True}


@contextmanager
def process(drain_s: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "tests.server.serve_slowly", str(drain_s)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server, f"http://127.0.0.1:{server.stdout.readline().strip()}/v1/completions"
    finally:
        server.kill()
        server.communicate()


def ended(server: subprocess.Popen[str]) -> str:
    """What a server that has ended well wrote to stderr."""
    _, err = server.communicate(timeout=30)
    assert server.returncode == 0, err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_finish(number: signal.Signals) -> None:
    with process(drain_s=30) as (server, url):
        with httpx.stream("POST", url, json={**LONG, "max_tokens": 20}) as response:
            lines = response.iter_lines()
            next(lines)
            server.send_signal(number)
            rest = [line for line in lines if line]
        assert len(rest) == 20
        assert rest[-1] == "data: [DONE]"
        assert "dropping" not in ended(server)


def test_requests_that_take_too_long_are_dropped_and_told() -> None:
    with process(drain_s=1) as (server, url):
        with httpx.stream("POST", url, json=LONG) as response:
            lines = response.iter_lines()
            next(lines)
            server.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "engine_dead"
        assert rest[-1] == "data: [DONE]"
        assert "dropping 1 requests" in ended(server)


def test_a_second_interrupt_drops_at_once() -> None:
    with process(drain_s=600) as (server, url):
        with httpx.stream("POST", url, json=LONG) as response:
            lines = response.iter_lines()
            next(lines)
            server.send_signal(signal.SIGINT)
            for _ in range(10):
                next(lines)
            server.send_signal(signal.SIGINT)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        ended(server)


def test_an_idle_server_stops() -> None:
    with process(drain_s=600) as (server, url):
        assert httpx.get(url.replace("/v1/completions", "/health")).status_code == 200
        server.send_signal(signal.SIGTERM)
        ended(server)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option")
def test_clients_that_take_nothing_are_cut_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cut_off_stalled(listener, 1.0)
        with socket.create_connection(listener.getsockname()):
            server, _ = listener.accept()
            with server, pytest.raises(TimeoutError):
                server.sendall(bytes(64 << 20))


def test_no_limit_for_clients_that_take_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        before = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        cut_off_stalled(listener, None)
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == before
