"""bench/report.py: docs/performance.md shows the latest results."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.bench.results import result


@pytest.fixture
def found(compare: ModuleType, engines: ModuleType, tmp_path: Path) -> dict[str, Any]:
    model = tmp_path / "m.gguf"
    model.write_bytes(bytes(1 << 20))
    work = engines.Workload(model, 512, 4, (1,), 2, 1 << 20)
    rounds = {
        "tokenmill": [result(30), result(40), result(50)],
        "llama-cpp-python": [result(10) | {"version": "9.9"}],
    }
    values: dict[str, Any] = compare.report("small", work, rounds)
    return {**values, "file": "small.json"}


def test_the_page_is_current(report: ModuleType) -> None:
    page = report.PAGE.read_text("utf-8")
    generated = report.render(report.latest(report.RESULTS), report.perplexities(report.RESULTS))
    assert report.page(page, generated) == page, "run python bench/report.py"


def test_only_what_is_between_the_marks_changes(report: ModuleType) -> None:
    old = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    new = report.page(old, "new")
    assert new == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"
    assert report.page(new, "new") == new


def test_a_page_without_marks(report: ModuleType) -> None:
    with pytest.raises(ValueError, match="marks"):
        report.page("nothing here", "new")


def test_the_newest_result_of_each_model(report: ModuleType, tmp_path: Path) -> None:
    for name, model, date, schema in (
        ("1.json", "demo", "2026-01-02T00:00:00", 2),
        ("2.json", "demo", "2026-01-01T00:00:00", 2),
        ("3.json", "another", "2026-01-01T00:00:00", 2),
        ("4.json", "demo", "2026-01-03T00:00:00", 1),
    ):
        (tmp_path / name).write_text(json.dumps({"schema": schema, "name": model, "date": date}))
    (tmp_path / "perplexity.json").write_text("{}")
    assert [f["file"] for f in report.latest(tmp_path)] == ["1.json", "3.json"]


def test_tables(report: ModuleType, found: dict[str, Any]) -> None:
    text = report.render([found], {})
    assert "| small | prefill 512 | 100 (100 to 100) | llama.cpp: 100 (100 to 100) | 1.00 |" in text
    assert "| small | decode, 1 sequence | 40 (30 to 50) | llama.cpp: 10 (10 to 10) | 4.00 |" in text
    assert "| small | tokenmill | 20 | 50 | 80% | 25% of int8 |" in text
    assert "Long contexts" not in text
    assert "Perplexity" not in text


def test_contexts_and_starts(report: ModuleType, found: dict[str, Any]) -> None:
    seconds = {"median": 1.5, "least": 1.0, "most": 2.0}
    found["contexts"] = {
        "tokenmill": [
            {"tokens": 100, "decode_tok_s": 50.0},
            {"tokens": 8000, "decode_tok_s": 40.0},
        ]
    }
    found["startup"] = {"tokenmill": {"first start": seconds, "later": seconds}}
    text = report.render([found], {})
    assert "| small | tokenmill | 50 at 100 | 40 at 8000 | 80% |" in text
    assert "| small | tokenmill | 1.5 (1 to 2) | 1.5 (1 to 2) | 1 (1 to 1) | 3 | 1 | 1 | 2.00 |" in text


def test_perplexities(report: ModuleType) -> None:
    values = {"text": "T", "window": 512, "tokens": 9, "fp32": 10.0, "tokenmill": 10.02}
    values["tokenmill error"] = 0.001
    llama = {"llama-cpp-python": 10.1, "llama-cpp-python error": 0.002}
    text = report.readings({"other": values, "demo": {**values, **llama}})
    rows = text.splitlines()[-2:]
    assert rows[0] == "| demo | 10.0000 | 10.0200 (+0.20% ± 0.10%) | 10.1000 (+1.00% ± 0.20%) |"
    assert rows[1] == "| other | 10.0000 | 10.0200 (+0.20% ± 0.10%) | - |"


def test_profiles(report: ModuleType, found: dict[str, Any]) -> None:
    row = {
        "name": "attention",
        "seconds": 0.001,
        "share": 0.5,
        "read_bytes_s": 2e9,
        "ops_s": 3e9,
        "bound": "read",
        "of_ceiling": 0.25,
    }
    other = {**row, "name": "rope", "bound": None, "of_ceiling": None}
    step = {**row, "tokens": 1, "context": 9, "operators": [row, other]}
    found["profile"] = {
        "kernels": "avx2",
        "steps": [
            {**step, "step": "prefill", "operators": [row], "python": None},
            {**step, "step": "decode", "python": {"share": 0.03}},
        ],
    }
    text = report.profiles([found])
    assert "kernels `avx2`" in text
    assert "Python takes 3.0% of a decode step" in text
    assert "| attention | 1.000 | 50.0% | 2.0 | 25% read | 1.000 | 50.0% | 3.0 | 25% read |" in text
    assert "| rope | 1.000 | 50.0% | 2.0 | - | - | - | - | - |" in text
