"""bench/compare.py: what it makes of the engines' figures, and what it says when a peer is missing."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare", ROOT / "bench/compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["compare"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def result(speed: float, load_s: float = 1.0) -> dict[str, Any]:
    run = {
        "concurrency": 4,
        "decode_tok_s": speed,
        "total_tok_s": 9.0,
        "ttft_p50_s": 0.5,
        "itl_p50_s": 0.1,
    }
    return {
        "load_s": load_s,
        "ttft_s": 0.2,
        "prefill_tok_s": 100.0,
        "peak_rss_bytes": 1 << 20,
        "runs": [run],
        "ceilings": None,
        "share": None,
    }


def test_medians_and_spread(compare: ModuleType) -> None:
    summary = compare.summarise([result(10), result(30), result(20)])
    assert summary["decode_tok_s at 4"] == {"median": 20, "least": 10, "most": 30}


def test_ratios_are_above_one_where_we_are_better(compare: ModuleType) -> None:
    own, other = compare.summarise([result(30, 1.0)]), compare.summarise([result(10, 4.0)])
    ratios = compare.ratios(own, other)
    assert ratios["decode_tok_s at 4"] == 3.0
    assert ratios["load_s"] == 4.0
    assert ratios["ttft_s"] == 1.0


def test_report(compare: ModuleType) -> None:
    work = compare.Workload("m", 8, 4, "4", 2, None)
    rounds = {"tokenmill": [result(30)], "llama-cpp-python": [result(10) | {"version": "9.9"}]}
    found = compare.report(work, rounds)
    assert found["versions"]["llama-cpp-python"] == "9.9"
    assert found["ratios"]["llama-cpp-python"]["decode_tok_s at 4"] == 3.0
    assert found["workload"]["threads"] == 2
    json.dumps(found)
    text = compare.lines(found)
    assert "llama-cpp-python" in text[0]
    assert next(line for line in text if line.startswith("decode_tok_s at 4")).endswith("3.00")


def test_a_missing_peer_is_explained(compare: ModuleType, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    assert "make bench-peers" in compare.why_no_peers(tmp_path / "python", model)
    assert ".gguf files only" in compare.why_no_peers(tmp_path / "python", tmp_path)


def test_a_python_without_the_peer(compare: ModuleType, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    assert "has no llama-cpp-python" in compare.why_no_peers(python, tmp_path / "model.gguf")


def test_a_worker_that_fails(compare: ModuleType) -> None:
    with pytest.raises(SystemExit, match="failed: no luck"):
        compare.run_worker([sys.executable, "-c", "import sys; sys.exit('no luck')"])


def test_a_worker_that_talks_before_its_result(compare: ModuleType) -> None:
    code = "print('hello'); print('{\"a\": 1}')"
    assert compare.run_worker([sys.executable, "-c", code]) == {"a": 1}
