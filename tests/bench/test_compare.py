"""bench/compare.py: what it asks of the engines, and what it records."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.bench.results import result

CONFIG = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "max_position_embeddings": 2048,
}


@pytest.fixture
def work(engines: ModuleType, tmp_path: Path) -> Any:
    model = tmp_path / "m.gguf"
    model.write_bytes(bytes(1 << 20))
    return engines.Workload(model, 8, 4, (1,), 2, 1 << 20)


@pytest.fixture
def plan(compare: ModuleType, tmp_path: Path) -> Any:
    return compare.Plan(2, 512, 64, (1, 16), (100, 8000), 2, None, (), tmp_path)


def test_the_cache_holds_the_texts(compare: ModuleType) -> None:
    token_bytes = 2 * 2 * 8 * 2 * 2  # keys and values, heads, width, layers, bytes
    assert compare.cache_bytes(CONFIG, [(1, 100), (4, 50)]) == int(1.25 * 200 * token_bytes)
    assert compare.cache_bytes({**CONFIG, "head_dim": 16}, [(1, 4)]) == int(1.25 * 4 * 2 * token_bytes)


def test_contexts_that_a_model_can_not_read(
    compare: ModuleType, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Checkpoint:
        config: dict[str, Any] = CONFIG

    monkeypatch.setattr(compare, "open_checkpoint", lambda path: Checkpoint)
    assert compare.context_workload(Path("m.gguf"), plan) is None
    Checkpoint.config = {**CONFIG, "max_position_embeddings": 8064}
    work = compare.context_workload(Path("m.gguf"), plan)
    assert (work.contexts, work.concurrency) == ((100, 8000), (1,))


def test_rounds_alternate_and_a_peer_that_fails_is_left_out(
    compare: ModuleType, engines: ModuleType, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def run_worker(command: list[str]) -> dict[str, Any]:
        name = Path(command[1]).stem if command[0] == "python" else "tokenmill"
        asked.append(name)
        if name == "bad":
            raise engines.WorkerError("no luck")
        return {**result(10), "version": "9.9", "model": "/home/me/m.gguf"}

    monkeypatch.setattr(compare, "run_worker", run_worker)
    good, bad = (
        engines.Peer(name, Path("python"), f"{name}.py", (), ".gguf", "") for name in ("good", "bad")
    )
    results = compare.measure(work, [good, bad], 2)
    assert asked == ["tokenmill", "good", "bad", "tokenmill", "good"]
    assert {engine: len(rounds) for engine, rounds in results.items()} == {"tokenmill": 2, "good": 2}
    assert results["tokenmill"][0]["model"] == "m.gguf"


def test_what_is_recorded(compare: ModuleType, work: Any, tmp_path: Path) -> None:
    rounds = {"tokenmill": [result(30)], "llama-cpp-python": [result(10) | {"version": "9.9"}]}
    found = compare.report("small", work, rounds)
    assert found["versions"]["llama-cpp-python"] == "9.9"
    assert found["ratios"]["llama-cpp-python"]["decode_tok_s at 1"] == 3.0
    assert found["workload"]["threads"] == 2
    assert found["workload"]["model"] == "m.gguf"
    assert found["roofline"]["llama-cpp-python"]["decode_read"] == pytest.approx(0.2)
    # 3 MiB at the peak, 1 of them the cache, and a file of 1 MiB
    assert found["memory"]["beyond_cache_per_file"] == 2.0
    target = compare.record(found, tmp_path / "results")
    assert target.name.startswith(f"{found['date'][:10]}-small-")
    assert str(tmp_path) not in target.read_text("utf-8")
    assert json.loads(target.read_text("utf-8"))["schema"] == compare.SCHEMA


def test_the_size_of_a_directory_is_that_of_its_weights(compare: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    (tmp_path / "tokenizer.json").write_bytes(bytes(7))
    assert compare.file_bytes(tmp_path) == 100


def test_a_model_that_does_not_exist(
    compare: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare.py", "/nowhere/m.gguf"])
    assert compare.main() == 1
    assert "compare.py: error: " in capsys.readouterr().err


def test_all_goes_on_after_a_failure(
    compare: ModuleType, engines: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[int] = []

    def fail() -> None:
        raise engines.WorkerError("no luck")

    assert compare.run_all([lambda: done.append(1), fail, lambda: done.append(2)]) == 1
    assert done == [1, 2]
    assert capsys.readouterr().err == "compare.py: error: no luck\n"
    assert compare.run_all([lambda: done.append(3)]) == 0


@pytest.mark.model
def test_a_real_comparison(
    compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: ModuleType
) -> None:
    options = {"rounds": "1", "prompt-tokens": "8", "gen-tokens": "4", "concurrency": "1,2"}
    options |= {"contexts": "8,16", "output": str(tmp_path)}
    flags = [f"--{name}={value}" for name, value in options.items()]
    monkeypatch.setattr(sys, "argv", ["compare.py", "demo", *flags])
    assert compare.main() == 0
    (found,) = report.latest(tmp_path)
    assert found["name"] == "demo"
    assert [run["tokens"] for run in found["contexts"]["tokenmill"]] == [8, 16]
    assert set(found["startup"]["tokenmill"]) == {"first start", "later"}
    text = report.render([found], {})
    for title in (
        "The runs",
        "Speed beside",
        "Roofline",
        "Start and memory",
        "Long contexts",
        "time goes",
    ):
        assert title in text
