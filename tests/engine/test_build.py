from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.harness import MemoryCheckpoint
from tokenmill.config import ComputeConfig
from tokenmill.engine.build import (
    choose_operators,
    end_ids,
    recommended_params,
    recommended_pooling,
)
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.errors import ConfigError
from tokenmill.hardware import ThreadChoice

ONE = ThreadChoice(1, (), "test")


def test_the_first_configuration_that_names_end_tokens_counts() -> None:
    assert end_ids({"eos_token_id": [1, 106]}, {"eos_token_id": 1}) == {1, 106}
    assert end_ids({}, {"eos_token_id": 0}) == {0}
    assert end_ids({"eos_token_id": None}, {"eos_token_id": []}) == frozenset()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, SamplingParams()),
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
            SamplingParams(temperature=0.7, top_p=0.8, top_k=20),
        ),
        ({"do_sample": False, "temperature": 0.7}, SamplingParams(temperature=0.0)),
        ({"repetition_penalty": 1.1}, SamplingParams(repetition_penalty=1.1)),
        ({"top_p": None}, SamplingParams()),
        ({"top_p": 7}, SamplingParams()),
    ],
)  # fmt: skip
def test_recommended_params(config: dict[str, Any], expected: SamplingParams) -> None:
    assert recommended_params(config) == expected


@pytest.mark.parametrize(("kind", "expected"), [(1, "mean"), (3, "last"), (2, "last"), (None, "last")])
def test_recommended_pooling_of_gguf(kind: int | None, expected: str) -> None:
    metadata = {"general.architecture": "x", "x.pooling_type": kind}
    assert recommended_pooling(MemoryCheckpoint({}, {}, metadata=metadata)) == expected
    assert recommended_pooling(MemoryCheckpoint({}, {})) == "last"


@pytest.mark.parametrize(("mean", "expected"), [(True, "mean"), (False, "last")])
def test_recommended_pooling_of_a_directory(tmp_path: Path, mean: bool, expected: str) -> None:
    (tmp_path / "1_Pooling").mkdir()
    settings = {"pooling_mode_lasttoken": not mean, "pooling_mode_mean_tokens": mean}
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps(settings))
    assert recommended_pooling(MemoryCheckpoint({}, {}, path=tmp_path)) == expected


def test_the_reference_is_always_the_last_resort() -> None:
    operators = choose_operators(ComputeConfig(providers=()), ONE)
    assert [p.name for p in operators.table.providers] == ["reference"]
    assert operators.recorder() is None
    first = choose_operators(ComputeConfig(providers=("reference", "native")), ONE)
    assert first.table.providers[0].name == "reference"


def test_an_unknown_provider() -> None:
    with pytest.raises(ConfigError, match="no operator provider 'cuda'"):
        choose_operators(ComputeConfig(providers=("cuda",)), ONE)


def test_without_the_native_module_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tokenmill.engine.build.load_provider", lambda *args, **options: (None, "no compiler")
    )
    operators = choose_operators(ComputeConfig(), ONE)
    assert operators.notes[0] == "native: no compiler"
    assert [p.name for p in operators.table.providers] == ["reference"]
