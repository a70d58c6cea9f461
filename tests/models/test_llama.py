"""Llama and Mistral against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from tests.models.harness import (
    ATOL,
    RTOL,
    OurModel,
    assert_results_belong_to_requests,
    assert_same_as_transformers,
    hf_logits,
    prompt_of,
    randomise,
    saved,
)
from tokenmill.cache.spec import FullAttentionSpec, SlidingWindowSpec
from tokenmill.ops.table import OpTable

SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 72,
    "intermediate_size": 120,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
}


def llama(**changes: Any) -> LlamaForCausalLM:
    return randomise(LlamaForCausalLM(LlamaConfig(**(SMALL | changes))))


LLAMAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "wide heads": {"head_dim": 20, "num_attention_heads": 3, "num_key_value_heads": 3},
    "odd heads, one kv head": {"num_attention_heads": 9, "num_key_value_heads": 1, "head_dim": 8},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama3": {
        "rope_theta": 50000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "yarn": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
}


@pytest.mark.parametrize("variant", LLAMAS)
def test_llama(ops: OpTable, tmp_path: Path, variant: str) -> None:
    hf = llama(**LLAMAS[variant])
    ours = OurModel(saved(hf, tmp_path), ops, max_model_len=128)
    assert_same_as_transformers(hf, ours)
    assert_results_belong_to_requests(ours)


def test_dynamic_rope_is_that_of_the_longest_text(ops: OpTable, tmp_path: Path) -> None:
    hf = llama(max_position_embeddings=32, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    ours = OurModel(saved(hf, tmp_path), ops, max_model_len=50)
    prompt = prompt_of(131, 50)
    torch.testing.assert_close(ours.logits(prompt), hf_logits(hf, prompt), atol=ATOL, rtol=RTOL)
    assert ours.model.max_position == 64


@pytest.mark.parametrize("window", [8, 20, None])
def test_mistral(ops: OpTable, tmp_path: Path, window: int | None) -> None:
    config = MistralConfig(**SMALL, sliding_window=window, head_dim=16)
    hf = randomise(MistralForCausalLM(config))
    ours = OurModel(saved(hf, tmp_path), ops)
    expected = FullAttentionSpec(2, 16, torch.float32)
    if window:
        expected = SlidingWindowSpec(2, 16, torch.float32, window)
    assert ours.model.cache_specs() == [expected] * 3
    assert_same_as_transformers(hf, ours)
    assert_results_belong_to_requests(ours)


def test_a_window_as_long_as_the_text_is_full_attention(ops: OpTable, tmp_path: Path) -> None:
    hf = randomise(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=50)))
    ours = OurModel(saved(hf, tmp_path), ops, max_model_len=50)
    assert ours.model.cache_specs() == [FullAttentionSpec(2, 12, torch.float32)] * 3
    prompt = prompt_of(131, 50)
    torch.testing.assert_close(ours.logits(prompt), hf_logits(hf, prompt), atol=ATOL, rtol=RTOL)
