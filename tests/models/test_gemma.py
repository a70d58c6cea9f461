"""Gemma 2 and 3 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
)

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
    raw_tensor,
    saved,
)
from tokenmill.errors import CheckpointError
from tokenmill.ops.table import OpTable

SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 60,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 10,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
}

GEMMA2: dict[str, dict[str, Any]] = {
    "soft caps": {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 3.0},
    "no soft caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "untied, biases, wide window": {
        "tie_word_embeddings": False,
        "attention_bias": True,
        "sliding_window": 30,
    },
}

GEMMA3: dict[str, dict[str, Any]] = {
    "plain": {"sliding_window_pattern": 3},
    "layer types": {
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    },
    "scaled global rope": {
        "sliding_window_pattern": 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}


def gemma3(**changes: Any) -> Gemma3ForCausalLM:
    return randomise(Gemma3ForCausalLM(Gemma3TextConfig(**(SMALL | changes))))


@pytest.mark.parametrize("variant", GEMMA2)
def test_gemma2(ops: OpTable, tmp_path: Path, variant: str) -> None:
    hf = randomise(Gemma2ForCausalLM(Gemma2Config(**(SMALL | GEMMA2[variant]))))
    ours = OurModel(saved(hf, tmp_path), ops)
    assert_same_as_transformers(hf, ours)
    assert_results_belong_to_requests(ours)


@pytest.mark.parametrize("variant", GEMMA3)
def test_gemma3(ops: OpTable, tmp_path: Path, variant: str) -> None:
    hf = gemma3(**GEMMA3[variant])
    ours = OurModel(saved(hf, tmp_path), ops)
    assert len({group.spec for group in ours.groups}) == 2
    assert_same_as_transformers(hf, ours)
    assert_results_belong_to_requests(ours)


def test_gemma3_rope_in_the_older_style(ops: OpTable) -> None:
    hf = gemma3(**GEMMA3["scaled global rope"])
    checkpoint = memory_checkpoint(hf)
    checkpoint.config |= {
        "rope_parameters": None,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    prompt = prompt_of(131, 45)
    torch.testing.assert_close(
        OurModel(checkpoint, ops).logits(prompt), hf_logits(hf, prompt), atol=ATOL, rtol=RTOL
    )


@pytest.mark.parametrize("older_names", [False, True])
def test_the_text_part_of_a_multimodal_gemma3(ops: OpTable, older_names: bool) -> None:
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = Gemma3Config(text_config=SMALL, vision_config=vision, attn_implementation="eager")
    hf = randomise(Gemma3ForConditionalGeneration(config))
    checkpoint = memory_checkpoint(hf)
    if older_names:
        checkpoint.tensors = {
            f"language_model.model.{name.removeprefix('model.language_model.')}"
            if name.startswith("model.language_model.")
            else name.removeprefix("model."): raw
            for name, raw in checkpoint.tensors.items()
        }
    ours = OurModel(checkpoint, ops)
    assert_same_as_transformers(hf, ours, steps=4)


def test_norm_weights_that_hold_their_one_already(ops: OpTable) -> None:
    hf = gemma3()
    checkpoint = memory_checkpoint(hf)
    checkpoint.norm_offset_applied = True
    for name, value in hf.state_dict().items():
        if "norm" in name:
            checkpoint.tensors[name] = raw_tensor(name, value + 1)
    prompt = prompt_of(131, 20)
    torch.testing.assert_close(
        OurModel(checkpoint, ops).logits(prompt), hf_logits(hf, prompt), atol=ATOL, rtol=RTOL
    )


def test_bidirectional_attention_is_refused(ops: OpTable) -> None:
    checkpoint = memory_checkpoint(gemma3())
    checkpoint.config["use_bidirectional_attention"] = True
    with pytest.raises(CheckpointError, match="use_bidirectional_attention"):
        OurModel(checkpoint, ops)
