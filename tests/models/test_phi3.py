"""Phi-3 and Phi-4 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM

from tests.models.harness import (
    ATOL,
    RTOL,
    OurModel,
    assert_results_belong_to_requests,
    assert_same_as_transformers,
    hf_logits,
    memory_checkpoint,
    prompt_of,
    randomise,
    saved,
)
from tokenmill.ops.table import OpTable

SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 80,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}


def longrope(pairs: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
        "long_factor": [1.5 + 0.9 * i for i in range(pairs)],
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "plain, grouped": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 10},
    "sliding window": {"sliding_window": 12},
    "tied, partly rotated": {"tie_word_embeddings": True, "partial_rotary_factor": 0.75},
    "longrope": {"original_max_position_embeddings": 100, "rope_scaling": longrope(8)},
    "longrope, partly rotated": {
        "original_max_position_embeddings": 100,
        "partial_rotary_factor": 0.5,
        "rope_scaling": longrope(4),
    },
}


def phi3(**changes: Any) -> Phi3ForCausalLM:
    return randomise(Phi3ForCausalLM(Phi3Config(**(SMALL | changes))))


@pytest.mark.parametrize("variant", VARIANTS)
def test_phi3(ops: OpTable, tmp_path: Path, variant: str) -> None:
    hf = phi3(**VARIANTS[variant])
    # 100 tokens at most: where longrope still uses its short factors.
    ours = OurModel(saved(hf, tmp_path), ops, max_model_len=100)
    assert_same_as_transformers(hf, ours)
    assert_results_belong_to_requests(ours)


def test_longrope_uses_its_long_factors_when_longer_texts_are_served(ops: OpTable) -> None:
    hf = phi3(original_max_position_embeddings=40, rope_scaling=longrope(8))
    ours = OurModel(memory_checkpoint(hf), ops, max_model_len=60)
    prompt = prompt_of(131, 60)
    torch.testing.assert_close(ours.logits(prompt), hf_logits(hf, prompt), atol=ATOL, rtol=RTOL)
