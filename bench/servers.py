"""Starts the servers that are measured, and watches their memory."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from http_client import Address, get


@dataclass(frozen=True)
class Server:
    """A server process that is ready."""

    address: Address
    pid: int


@contextmanager
def running(command: Sequence[str], address: Address, ready_path: str) -> Iterator[Server]:
    """A server, from ready to ended.

    Ends the program, with the server's last words, if it doesn't come up, or ends by itself.
    """
    with tempfile.TemporaryFile("w+") as words:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stdout=words, stderr=words, env=environment)
        try:
            asyncio.run(_ready(process, address, ready_path))
            yield Server(address, process.pid)
        except (_NotReady, OSError) as error:
            if isinstance(error, OSError) and process.poll() is None:
                raise
            words.seek(0)
            last = (words.read().strip() or "no word")[-2000:]
            ended = f"the server ended with status {process.poll()}"
            raise SystemExit(f"{error if process.poll() is None else ended}: {last}") from None
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def tokenmill_command(model: str, address: Address, options: Sequence[str]) -> list[str]:
    """Serves a model with tokenmill."""
    place = ["--host", address.host, "--port", str(address.port)]
    return [sys.executable, "-m", "tokenmill", "serve", model, *place, *options]


def llama_cpp_command(python: Path, model: Path, address: Address, threads: int) -> list[str]:
    """Serves a .gguf file with llama-cpp-python, which answers one request after another."""
    return [
        str(python), "-m", "llama_cpp.server", "--model", str(model), "--host", address.host,
        "--port", str(address.port), "--n_threads", str(threads), "--n_threads_batch", str(threads),
        "--n_ctx", "2048", "--n_gpu_layers", "0",
        # Else every new request cuts off the one that is being answered.
        "--interrupt_requests", "False",
    ]  # fmt: skip


def free_address() -> Address:
    """A port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Address("127.0.0.1", listener.getsockname()[1])


def resident_bytes(pid: int) -> tuple[int, int]:
    """Memory that a process has resident: all of it, and what is not a file's."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "RssAnon"):
            found[name] = int(value.split()[0]) << 10
    return found["VmRSS"], found["RssAnon"]


class _NotReady(Exception):
    """The server did not come up."""


async def _ready(process: subprocess.Popen[bytes], address: Address, path: str) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _NotReady(f"the server ended with status {process.returncode}")
        try:
            status, _ = await get(address, path)
        except (OSError, EOFError):
            status = 0
        if status == 200:
            return
        await asyncio.sleep(0.2)
    raise _NotReady("the server was not ready within 300 s")
