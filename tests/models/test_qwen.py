"""Qwen2 and Qwen3 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tests.models.harness import (
    OurModel,
    assert_results_belong_to_requests,
    assert_same_as_transformers,
    randomise,
    saved,
)
from tokenmill.ops.table import OpTable

SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 60,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
}

VARIANTS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen2, tied, sliding from the second layer": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
    ),
    "qwen2, yarn": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {
            "rope_theta": 1e6,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "qwen3, tied, biases, sliding layer types": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {
            "head_dim": 8,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_qwen(ops: OpTable, tmp_path: Path, variant: str) -> None:
    config, model, changes = VARIANTS[variant]
    hf = randomise(model(config(**(SMALL | changes))))
    ours = OurModel(saved(hf, tmp_path), ops, max_model_len=128)
    assert_same_as_transformers(hf, ours)
    assert_results_belong_to_requests(ours)


def test_a_window_without_its_switch_is_ignored(ops: OpTable, tmp_path: Path) -> None:
    hf = randomise(Qwen2ForCausalLM(Qwen2Config(**SMALL, sliding_window=4, max_window_layers=0)))
    ours = OurModel(saved(hf, tmp_path), ops)
    assert len({group.spec for group in ours.groups}) == 1
    assert_same_as_transformers(hf, ours, steps=1)
