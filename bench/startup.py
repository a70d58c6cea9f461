"""How long a user waits: from starting a process to the first token on its standard output."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from engines import HERE, Peer, WorkerError, Workload, environment


def seconds_to_first_output(command: Sequence[str], extra: dict[str, str] | None = None) -> float:
    """From the start of a process to the first byte that it prints.

    Raises WorkerError if it prints none, or fails.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        list(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**environment(command), **(extra or {})},
        cwd=HERE,
    )
    assert process.stdout is not None
    with process.stdout as stdout:
        first = stdout.read(1)
        passed = time.perf_counter() - started
        stdout.read()
    if process.wait() or not first:
        raise WorkerError(f"{' '.join(command[:4])} ... printed no token")
    return passed


def forget(model: Path) -> None:
    """Ask the system to drop a model's files from memory, so that they are read from the disk again."""
    files = [model] if model.is_file() else [path for path in model.iterdir() if path.is_file()]
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def of_tokenmill(model: Path, threads: int) -> dict[str, float]:
    """first start: nothing of the model in memory or packed on disk. later: right after it."""
    command = [
        sys.executable, "-m", "tokenmill", "run", str(model), "Once upon a time", "--raw",
        "--max-tokens", "1", "--ignore-eos", "--threads", str(threads),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as home:
        extra = {"TOKENMILL_HOME": home}
        forget(model)
        return {
            "first start": seconds_to_first_output(command, extra),
            "later": seconds_to_first_output(command, extra),
        }


def of_peer(peer: Peer, model: Path, threads: int) -> dict[str, float]:
    """The same for another engine, on a prompt of 4 tokens."""
    work = Workload(model, 4, 1, (1,), threads, 0)
    command = [*peer.command(work), "--first-token"]
    forget(model)
    return {
        "first start": seconds_to_first_output(command),
        "later": seconds_to_first_output(command),
    }
