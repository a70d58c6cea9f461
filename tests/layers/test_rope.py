"""Rotary frequencies against the formulas of transformers, and what a GGUF file adds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tokenmill.errors import CheckpointError
from tokenmill.layers.rope import RopeSpec, rope_frequencies
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.rope_config import read_rope

HEAD_DIM = 24
ORIGINAL = {"original_max_position_embeddings": 64}

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        **ORIGINAL,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, **ORIGINAL},
    "yarn with every option": {
        "rope_type": "yarn",
        "factor": 4.0,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.1,
        "truncate": False,
        **ORIGINAL,
    },
    "yarn with its own scale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 0.8,
        **ORIGINAL,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0 + i for i in range(12)],
        "long_factor": [2.0 + i for i in range(12)],
        **ORIGINAL,
    },
    "longrope with its own scale": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 12,
        "long_factor": [2.0] * 12,
        "attention_factor": 1.3,
        **ORIGINAL,
    },
}


def llama_config(scaling: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=96,
        num_attention_heads=4,
        head_dim=HEAD_DIM,
        max_position_embeddings=256,
        rope_theta=5e5,
        rope_scaling=dict(scaling),
    )


def spec_of(config: dict[str, Any], **options: Any) -> RopeSpec:
    return read_rope(ConfigReader(config), head_dim=HEAD_DIM, max_position=256, **options)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("length", [50, 256])
@pytest.mark.parametrize("style", ["transformers 5", "older"])
def test_frequencies_and_scale(name: str, length: int, style: str) -> None:
    scaling = SCALINGS[name]
    hf = llama_config(scaling)
    inv_freq, scale = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](hf, "cpu", seq_len=length)
    config: dict[str, Any] = {"rope_theta": 5e5, "rope_scaling": scaling}
    if style == "transformers 5":
        config = {"rope_parameters": hf.to_dict()["rope_parameters"]}
    rope = rope_frequencies(spec_of(config), length)
    torch.testing.assert_close(rope.inv_freq, inv_freq, rtol=2e-6, atol=0)
    assert rope.scale == pytest.approx(scale, rel=1e-12)


def test_default_is_unscaled() -> None:
    rope = rope_frequencies(spec_of({}), 100)
    expected = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    torch.testing.assert_close(rope.inv_freq, expected)
    assert rope.scale == 1.0


def test_partly_rotated_heads() -> None:
    for config in (
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4}},
    ):
        spec = spec_of(config)
        assert spec.rotary_dim == 12
        assert rope_frequencies(spec, 10).inv_freq.shape == (6,)


def test_each_layer_type_has_its_own() -> None:
    config = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    }
    full = spec_of(config, layer_type="full_attention")
    local = spec_of(config, layer_type="sliding_attention")
    assert (full.kind, full.theta, full.factor) == ("linear", 1e6, 2.0)
    assert (local.kind, local.theta) == ("default", 1e4)


def test_factors_of_a_gguf_file_divide_the_frequencies() -> None:
    factors = torch.arange(1, 13).float()
    plain, divided = (rope_frequencies(spec_of({}), 10, f) for f in (None, factors))
    assert torch.equal(divided.inv_freq, plain.inv_freq / factors)


def test_the_first_name_of_longrope() -> None:
    scaling = {"type": "su", "short_factor": [1.0] * 12, "long_factor": [2.0] * 12}
    config = {"rope_scaling": scaling, "original_max_position_embeddings": 64}
    spec = spec_of(config)
    assert (spec.kind, spec.original_max_position, spec.factor) == ("longrope", 64, 4.0)


@pytest.mark.parametrize(
    ("kind", "limit"), [("linear", 256), ("dynamic", 1024), ("yarn", 256), ("longrope", 256)]
)
def test_how_long_a_text_may_be(kind: str, limit: int) -> None:
    assert spec_of({"rope_scaling": SCALINGS[kind]}).position_limit == limit


def test_yarn_extends_a_configured_context_that_is_the_original_one() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert spec_of({"rope_scaling": scaling}).position_limit == 1024


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"rope_theta": 0.5}, "rope_theta"),
        ({"rope_theta": "10000"}, "rope_theta"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.01}, "partial_rotary_factor"),
        ({"rope_scaling": []}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": True}}, "factor"),
        ({"rope_scaling": SCALINGS["llama3"] | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_scaling": SCALINGS["longrope"] | {"long_factor": [1.0]}}, "long_factor"),
        ({"rope_scaling": SCALINGS["longrope"] | {"short_factor": [0.0] * 12}}, "short_factor"),
        ({"rope_scaling": SCALINGS["longrope"] | {"short_factor": ["1"] * 12}}, "short_factor"),
        (
            {"rope_scaling": SCALINGS["yarn"] | {"original_max_position_embeddings": -1}},
            "original_max_position_embeddings",
        ),
    ],
)
def test_absurd_values_are_named(config: dict[str, Any], key: str) -> None:
    with pytest.raises(CheckpointError, match=key):
        spec_of(config)
