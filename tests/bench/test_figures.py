"""bench/figures.py: what is made of the workers' figures."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.bench.results import CEILINGS, WORK, result


def test_medians_and_spread(figures: ModuleType) -> None:
    summary = figures.summarise([figures.flat(result(speed)) for speed in (10, 30, 20)])
    assert summary["decode_tok_s at 1"] == {"median": 20, "least": 10, "most": 30}


def test_ratios_are_above_one_where_we_are_better(figures: ModuleType) -> None:
    own = figures.summarise([figures.flat(result(30, load_s=1.0))])
    other = figures.summarise([figures.flat(result(10, load_s=4.0))])
    ratios = figures.ratios(own, other)
    assert ratios["decode_tok_s at 1"] == 3.0
    assert ratios["load_s"] == 4.0
    assert ratios["ttft_s"] == 1.0
    assert set(ratios) == set(own)


def test_what_the_other_did_not_measure_has_no_ratio(figures: ModuleType) -> None:
    own = figures.summarise([figures.flat(result(30))])
    assert figures.ratios(own, {"load_s": {"median": 2.0}}) == {"load_s": 2.0}
    assert figures.ratios(own, {"load_s": {"median": 0.0}}) == {}


def test_roofline(figures: ModuleType) -> None:
    summary = figures.summarise([figures.flat(result(25))])
    assert figures.roofline(summary, WORK, CEILINGS) == {
        "decode_read": 0.5,  # 25 tokens of 20 MB in a second that can read 1 GB
        "prefill": 0.25,  # 100 tokens of 10 million operations, of 4 billion
        "prefill_arithmetic": "int8",
    }
    plain = figures.roofline(summary, {**WORK, "quantised": False}, CEILINGS)
    assert (plain["prefill"], plain["prefill_arithmetic"]) == (1.0, "fp32")


def test_a_ceiling_that_is_not_known(figures: ModuleType) -> None:
    summary = figures.summarise([figures.flat(result(25, concurrency=4))])
    found = figures.roofline(summary, WORK, {**CEILINGS, "int8_ops_s": None})
    assert (found["decode_read"], found["prefill"]) == (None, None)


def test_memory_beyond_the_cache(figures: ModuleType) -> None:
    assert figures.memory_share(350, 200, 100) == pytest.approx(1.25)


def test_the_table(figures: ModuleType) -> None:
    own, other = (figures.summarise([figures.flat(result(s))]) for s in (30, 10))
    del other["ttft_s"]
    found = {
        "summary": {"tokenmill": own, "other": other},
        "ratios": {"other": figures.ratios(own, other)},
    }
    text = figures.lines(found)
    assert text[0].split() == ["tokenmill", "other", "ratio"]
    assert next(line for line in text if line.startswith("decode_tok_s at 1")).endswith("3.00")
    assert next(line for line in text if line.startswith("ttft_s ")).split()[-2:] == ["-", "-"]
    assert any(line.startswith("peak memory MiB") and " 3 (3-3)" in line for line in text)
