from __future__ import annotations

from typing import Any

import pytest

from tokenmill.benchmark import profile as profiling
from tokenmill.cli import main

RATES = {
    "bytes_read": 2e6,
    "operations": 8e6,
    "read_bytes_s": 2e9,
    "ops_s": 8e9,
    "bound": "read",
    "of_ceiling": 0.5,
}
OPERATORS = [
    {"name": "norm + qkv 960x576", "calls": 30, "seconds": 0.001, "share": 0.75, **RATES},
    {"name": "rope_table", "calls": 1, "seconds": 0.0, "share": 0.25, **RATES, "of_ceiling": None},
]


def step(kind: str, sequences: int, python: dict[str, float] | None) -> dict[str, Any]:
    return {
        "step": kind,
        "sequences": sequences,
        "tokens": 4,
        "context": 9,
        "seconds": 0.00125,
        **RATES,
        "operators": OPERATORS,
        "python": python,
    }


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was to be profiled; nothing is loaded."""
    plans: list[Any] = []

    def fake(config: Any, plan: Any, report: Any) -> dict[str, Any]:
        plans.append(plan)
        names = ("schedule", "fill", "forward", "sample", "append", "other")
        python = {f"{name}_s": 0.000002 for name in names} | {"step_s": 0.002, "share": 0.125}
        return {
            "model": "m",
            "threads": 2,
            "kernels": "avx2",
            "ceilings": {"read_bytes_s": 4e9, "fp32_ops_s": 9e9, "int8_ops_s": None},
            "steps": [step("prefill", 1, None), step("decode", 4, python)],
        }

    monkeypatch.setattr(profiling, "profile", fake)
    return plans


def test_profile(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "m", "--profile", "--prompt-tokens", "9"]) == 0
    assert (asked[0].prompt_tokens, asked[0].concurrency) == (9, (1,))
    out = capsys.readouterr().out.splitlines()
    assert "kernels avx2" in out[0]
    assert "unknown number of int8" in out[1]
    assert out[3] == "prefill: 1 sequence, 4 tokens, context 9: 1.250 ms in the native call"
    assert out[5].split() == [
        *("norm", "+", "qkv", "960x576", "30", "1.000", "75.0%", "2.00", "2.00", "8.0", "50%", "read")
    ]
    assert out[6].endswith("  -")
    assert out[7].startswith("all ")
    assert "decode: 4 sequences" in out[9]
    assert out[-1].startswith("Python: 12.5% of 2.000 ms")
    assert "sample 2" in out[-1]


def test_profile_of_several_batches(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "m", "--profile", "--concurrency", "1,16", "--json"]) == 0
    assert asked[0].concurrency == (1, 16)
    assert capsys.readouterr().out.startswith('{"model": "m"')
