from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CliEngine
from tokenmill import __version__
from tokenmill.cli import main
from tokenmill.cli import pull as pull_command
from tokenmill.errors import EngineDeadError, SourceError

COMMANDS = ("run", "chat", "serve", "bench", "pull", "models", "info")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tokenmill {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"usage: tokenmill {command}" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    python(
        "import sys\nfrom tokenmill.cli import main\nmain(['--help'])\nmain(['run', '--help'])\n"
        "heavy = {'torch', 'tokenizers', 'jinja2', 'starlette', 'uvicorn'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tokenmill", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"tokenmill {__version__}\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["run"], "MODEL"),
        (["run", "demo", "x", "--max-tokens", "0"], "'0' is not a whole number from 1"),
        (["run", "demo", "x", "--max-tokens", "many"], "'many' is not a whole number"),
        (["run", "demo", "x", "--temperature", "hot"], "invalid float value: 'hot'"),
        (["run", "demo", "x", "--temperature", "-1"], "temperature"),
        (["run", "demo", "x", "--top-p", "2"], "top_p"),
        (["run", "demo", "x", "--top-k", "-7"], "top_k"),
        (["run", "demo", ""], "the prompt is empty"),
        (["run", "", "x"], "no model was given"),
        (["run", "demo", "x", "--raw", "--system", "y"], "--raw"),
        (["run", "demo", "x", "--cache-memory", "lots"], "'lots' is not a size"),
        (["run", "demo", "x", "--quantization", "int2"], "invalid choice: 'int2'"),
        (["run", "demo", "x", "--threads", "0"], "whole number from 1"),
        (["serve", "demo", "--port", "70000"], "not a port"),
        (["serve", "demo", "--max-batched-tokens", "8"], "max_num_batched_tokens"),
        (["bench", "demo", "--concurrency", "1,x"], "'x' is not a whole number"),
        (["pull"], "MODEL"),
        (["models", "--remove"], "expected one argument"),
    ],
)
@pytest.mark.usefixtures("no_engine")
def test_wrong_usage(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def raising(error: BaseException) -> Any:
    def execute(args: object) -> int:
        raise error

    return execute


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (SourceError("there is\nno network"), 1, "tokenmill: error: there is no network\n"),
        (EngineDeadError("it stopped"), 1, "tokenmill: error: it stopped\n"),
        (KeyError("x"), 1, "tokenmill: internal error: KeyError: 'x' (--debug shows where)\n"),
        (MemoryError(), 1, "tokenmill: error: this machine has too little memory;"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_failures(
    error: BaseException,
    status: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(pull_command, "execute", raising(error))
    assert main(["pull", "demo"]) == status
    err = capsys.readouterr().err
    assert err.startswith(text)
    assert err.count("\n") == 1


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pull_command, "execute", raising(SourceError("no network")))
    assert main(["pull", "demo", "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("tokenmill: error: no network\n")


def test_a_reader_that_leaves() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tokenmill", "models"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "no-such-model"]) == 1
    assert "unknown model 'no-such-model'" in capsys.readouterr().err


def test_a_file_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"not a model at all, but long enough to have a header" * 4)
    assert main(["run", str(path), "hello"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("tokenmill: error: ")
    assert err.count("\n") == 1
    assert "bad.gguf" in err


def test_engine_options(engine: CliEngine) -> None:
    argv = (
        "run demo hi --max-tokens 1 --threads 3 --max-model-len 99 --cache-memory 1.5G "
        "--quantization int4 --dtype float16 --cache-dtype bfloat16 --no-prefix-caching "
        "--max-num-seqs 7 --max-batched-tokens 70 --scheduling priority --providers reference,native"
    )
    assert main(argv.split()) == 0
    assert engine.config is not None
    load, cache = engine.config.load, engine.config.cache
    scheduler, compute = engine.config.scheduler, engine.config.compute
    assert (load.model, load.dtype, load.quantization) == ("demo", "float16", "int4")
    assert (cache.memory_bytes, cache.enable_prefix_caching) == (3 << 29, False)
    assert cache.cache_dtype == "bfloat16"
    assert (scheduler.max_model_len, scheduler.max_num_seqs) == (99, 7)
    assert (scheduler.max_num_batched_tokens, scheduler.policy) == (70, "priority")
    assert (compute.num_threads, compute.providers) == (3, ("reference", "native"))


def test_int8_is_a_type_of_caches_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "demo", "a", "--dtype", "int8"]) == 2
    assert "--dtype: invalid choice: 'int8'" in capsys.readouterr().err
