from __future__ import annotations

import json

import pytest

from tests.ops.test_work import FakeWeight
from tokenmill.benchmark.profile import ProfilePlan, describe_step, profile, python_share
from tokenmill.config import ComputeConfig, EngineConfig, LoadConfig, SchedulerConfig
from tokenmill.errors import ConfigError
from tokenmill.hardware.ceilings import Ceilings
from tokenmill.ops.table import LOGITS, Linear, operator_name
from tokenmill.ops.work import StepShape

CEILINGS = Ceilings(1e9, 1e9, 10e9, "native", 0)


def test_operators_of_one_name_are_added_up_and_the_slowest_comes_first() -> None:
    down, head = Linear(FakeWeight(), label="down"), Linear(FakeWeight(nbytes=1000), label=LOGITS)
    run = [(operator_name(down), 100), (operator_name(down), 140), (operator_name(head), 1000)]
    slow = [(name, 10 * ns) for name, ns in run]
    found = describe_step(
        [run, slow, run], [down, down, head], StepShape(((5, 5),), logits=1), CEILINGS
    )
    first, second = found["operators"]
    assert (first["name"], first["calls"]) == ("logits 6x32", 1)
    assert (second["name"], second["calls"]) == ("down 6x32", 2)
    assert second["seconds"] == pytest.approx(240e-9)  # the median of the three runs
    assert second["bytes_read"] == 240
    assert second["operations"] == 2 * 2 * 6 * 32
    assert second["share"] == pytest.approx(240 / 1240)
    assert first["read_bytes_s"] == pytest.approx(1e9)
    assert (first["bound"], first["of_ceiling"]) == ("read", pytest.approx(1.0))
    assert found["seconds"] == pytest.approx(1240e-9)
    assert found["bytes_read"] == 1240


def test_an_operator_that_nobody_declared_has_a_time_only() -> None:
    found = describe_step([[("new", 10)]], [], StepShape(((0, 0),), logits=1), CEILINGS)
    (only,) = found["operators"]
    assert only["share"] == 1.0
    assert only["of_ceiling"] is None
    assert only["bound"] is None


def test_python_is_what_is_not_the_forward() -> None:
    parts = {"schedule": 1e6, "fill": 2e6, "forward": 80e6, "sample": 3e6, "append": 4e6}
    found = python_share(0.1, parts)
    assert found["share"] == pytest.approx(0.2)
    assert found["other_s"] == pytest.approx(0.01)
    assert found["sample_s"] == pytest.approx(0.003)
    assert python_share(0.0, parts)["other_s"] == 0.0


def config(*providers: str) -> EngineConfig:
    return EngineConfig(
        load=LoadConfig("demo"),
        scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=64),
        compute=ComputeConfig(providers=providers),
    )


@pytest.mark.model
def test_a_real_model() -> None:
    told: list[str] = []
    found = profile(config("native"), ProfilePlan(20, 12, (1, 3), repeats=2), told.append)
    json.dumps(found)
    assert told[0] == "loading"
    prefill, one, three = found["steps"]
    assert [s["step"] for s in found["steps"]] == ["prefill", "decode", "decode"]
    assert (prefill["sequences"], prefill["tokens"], prefill["context"]) == (1, 20, 20)
    assert (one["sequences"], one["tokens"], one["context"]) == (1, 1, 21)
    assert (three["sequences"], three["tokens"]) == (3, 3)
    for step in found["steps"]:
        assert sum(row["share"] for row in step["operators"]) == pytest.approx(1.0)
        by_name = {row["name"]: row for row in step["operators"]}
        # SmolLM2: 30 layers, and one output matrix.
        assert by_name["attention"]["calls"] == by_name["silu + down 576x1536 + add"]["calls"] == 30
        assert by_name["norm + logits 49152x576"]["calls"] == 1
        assert all(row["seconds"] >= 0 for row in step["operators"])
        assert by_name["norm + logits 49152x576"]["bytes_read"] > 10e6
    assert 0 < one["python"]["share"] < 1
    assert prefill["python"] is None


@pytest.mark.model
def test_reference_operators_cannot_be_profiled() -> None:
    with pytest.raises(ConfigError, match="only native operators can be profiled"):
        profile(config("reference"), ProfilePlan(8, 4), lambda text: None)


@pytest.mark.model
def test_prompts_must_fit() -> None:
    with pytest.raises(ConfigError, match="lower --prompt-tokens"):
        profile(config("native"), ProfilePlan(60, 12), lambda text: None)
