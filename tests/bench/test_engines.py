"""bench/engines.py and bench/startup.py: how workers are started, and what is said when that fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def work(engines: ModuleType, tmp_path: Path) -> Any:
    return engines.Workload(tmp_path / "m.gguf", 8, 4, (1, 4), 2, 1000, contexts=(10, 20))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    return path


def test_a_missing_environment_is_explained(engines: ModuleType, tmp_path: Path, model: Path) -> None:
    assert "make bench-peers" in engines.llama_cpp(tmp_path / "python").why_not(model)
    assert "make bench-vllm" in engines.vllm_cpu(tmp_path / "python").why_not(tmp_path)


def test_engines_read_what_they_read(engines: ModuleType, tmp_path: Path, model: Path) -> None:
    assert ".gguf files only" in engines.llama_cpp(Path(sys.executable)).why_not(tmp_path)
    assert "directories" in engines.transformers(Path(sys.executable)).why_not(model)


def test_an_environment_without_the_engine(engines: ModuleType, tmp_path: Path) -> None:
    peer = engines.Peer("rival", Path(sys.executable), "w.py", ("no_such_module_",), "", "magic")
    assert peer.why_not(tmp_path) == f"{sys.executable} lacks rival; magic installs it"


def test_an_environment_with_the_engine(engines: ModuleType, tmp_path: Path) -> None:
    assert (
        engines.Peer("json", Path(sys.executable), "w.py", ("json",), "", "").why_not(tmp_path) is None
    )


def test_commands(engines: ModuleType, work: Any) -> None:
    command = engines.llama_cpp(Path("python")).command(work)
    assert command[0] == "python"
    assert Path(command[1]).exists()
    assert command[2:] == [
        *(str(work.model), "--prompt-tokens", "8", "--gen-tokens", "4", "--concurrency", "1,4"),
        *("--threads", "2", "--contexts", "10,20"),
    ]
    own = engines.tokenmill_command(work, ceilings=False)
    assert own[own.index("--cache-memory") + 1] == "1000"
    assert own[-1] == "--no-ceilings"


def test_every_worker_exists(engines: ModuleType) -> None:
    for make in (engines.llama_cpp, engines.vllm_cpu, engines.transformers):
        assert (engines.HERE / make(Path("python")).worker).exists()


def test_a_worker_that_fails(engines: ModuleType) -> None:
    with pytest.raises(engines.WorkerError, match="failed: no luck"):
        engines.run_worker([sys.executable, "-c", "import sys; sys.exit('no luck')"])


def test_a_worker_that_fails_silently(engines: ModuleType) -> None:
    with pytest.raises(engines.WorkerError, match="exit status 3, without a word"):
        engines.run_worker([sys.executable, "-c", "raise SystemExit(3)"])


def test_an_illegal_instruction_is_explained(engines: ModuleType) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    with pytest.raises(engines.WorkerError, match="ONEDNN_MAX_CPU_ISA"):
        engines.run_worker([sys.executable, "-c", code])


def test_a_worker_that_talks_before_its_result(engines: ModuleType) -> None:
    code = "print('hello'); print('{\"a\": 1}')"
    assert engines.run_worker([sys.executable, "-c", code]) == {"a": 1}


def test_peers_do_not_see_our_environment(engines: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    seen = engines.run_worker([sys.executable, "-c", code])
    assert not {"OMP_NUM_THREADS", "PYTHONPATH"} & set(seen)
    own = engines.environment([sys.executable, "-m", "tokenmill"])
    assert own["PYTHONPATH"] == "somewhere"


def test_time_to_the_first_output(startup: ModuleType) -> None:
    code = "import os; assert os.environ['HOME_'] == 'x'; print('first'); print('later')"
    assert startup.seconds_to_first_output([sys.executable, "-c", code], {"HOME_": "x"}) > 0


@pytest.mark.parametrize("code", ["pass", "print('first'); raise SystemExit(1)"])
def test_a_process_without_a_token(startup: ModuleType, engines: ModuleType, code: str) -> None:
    with pytest.raises(engines.WorkerError, match="printed no token"):
        startup.seconds_to_first_output([sys.executable, "-c", code])


def test_files_are_forgotten_but_not_lost(startup: ModuleType, model: Path) -> None:
    startup.forget(model)
    startup.forget(model.parent)
    assert model.read_bytes() == b"weights"


def test_options_are_those_of_the_workers(
    engines: ModuleType, peer: ModuleType, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["worker", "m.gguf", *work.options()])
    task = peer.read_task("")
    assert (task.threads, task.concurrency, task.contexts) == (2, (1, 4), (10, 20))
    assert (task.max_seqs, task.max_len, task.first_token) == (4, 24, False)
    json.dumps(task.__dict__)
