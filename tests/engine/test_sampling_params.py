from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.errors import RequestError


def test_defaults_and_normal_forms() -> None:
    params = SamplingParams(stop="END", logit_bias={"5": 200}, bad_words=None, stop_token_ids=None)  # type: ignore[dict-item]
    assert params.stop == ("END",)
    assert params.bad_words == params.stop_token_ids == ()
    assert params.logit_bias == {5: 100.0}
    assert params.max_tokens == 16
    assert not params.greedy
    assert SamplingParams(temperature=0.0).greedy
    assert SamplingParams(top_k=1).greedy
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("n", 1.5), ("n", True), ("n", 10**6),
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", "hot"),
        ("top_p", 0.0), ("top_p", 1.1), ("top_k", -2), ("top_k", 1.0), ("min_p", -0.1), ("min_p", 1.1),
        ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")), ("seed", 1.5),
        ("max_tokens", 0), ("min_tokens", -1), ("logprobs", -1), ("prompt_logprobs", 10**6),
        ("stop", [""]), ("stop", [3]), ("stop", 3), ("bad_words", [""]),
        ("stop_token_ids", [-1]), ("stop_token_ids", ["a"]), ("allowed_token_ids", []),
        ("logit_bias", {"a": 1.0}), ("logit_bias", {-1: 1.0}), ("logit_bias", {1: float("nan")}),
        ("logit_bias", [1]), ("ignore_eos", 1), ("detokenize", None),
    ],
)  # fmt: skip
def test_a_wrong_value_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field):
        SamplingParams(**{field: value})


def test_contradictions() -> None:
    with pytest.raises(RequestError, match="min_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)
    with pytest.raises(RequestError, match="detokenize"):
        SamplingParams(stop="a", detokenize=False)


def test_needs_no_torch() -> None:
    code = (
        "import sys, tokenmill.engine.sampling_params as m; m.SamplingParams();"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
