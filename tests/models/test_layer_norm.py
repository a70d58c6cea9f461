"""Families with LayerNorms, plain MLPs, learned positions and ALiBi, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.models.harness import (
    OurModel,
    assert_results_belong_to_requests,
    assert_same_as_transformers,
    memory_checkpoint,
    raw_tensor,
    saved,
)
from tokenmill.errors import CheckpointError
from tokenmill.models.layer_norm_decoder import alibi_slopes
from tokenmill.ops.table import OpTable

TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

SMALL: dict[str, Any] = TOKENS | {
    "vocab_size": 131,
    "hidden_size": 60,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
}
GPT: dict[str, Any] = TOKENS | {
    "vocab_size": 131,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    "attn_implementation": "eager",
}
HEADS: dict[str, Any] = {"num_key_value_heads": 6}
BLOOM: dict[str, Any] = TOKENS | {
    "vocab_size": 131,
    "hidden_size": 48,
    "n_layer": 3,
    "attn_implementation": "eager",
}
SDPA = {"attn_implementation": "sdpa"}
"""For Falcon with ALiBi: the eager code of transformers adds the biases twice."""

FALCON: dict[str, Any] = TOKENS | {
    "vocab_size": 131,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "stablelm": ("StableLmForCausalLM", SMALL | {"hidden_size": 96}),
    "stablelm, parallel, biases, half rotated": (
        "StableLmForCausalLM",
        SMALL
        | {
            "hidden_size": 48,
            "use_parallel_residual": True,
            "use_qkv_bias": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "starcoder2": ("Starcoder2ForCausalLM", SMALL),
    "starcoder2, untied, no biases, a window": (
        "Starcoder2ForCausalLM",
        SMALL | {"use_bias": False, "sliding_window": 11, "tie_word_embeddings": False},
    ),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "gpt2, untied, relu, narrow": (
        "GPT2LMHeadModel",
        GPT | {"n_inner": 40, "activation_function": "relu", "tie_word_embeddings": False},
    ),
    "gpt-neox": ("GPTNeoXForCausalLM", SMALL | HEADS | {"hidden_size": 96}),
    "gpt-neox, one after the other, no biases": (
        "GPTNeoXForCausalLM",
        SMALL | HEADS | {"hidden_size": 48, "use_parallel_residual": False, "attention_bias": False},
    ),
    "gptj": ("GPTJForCausalLM", GPT | {"rotary_dim": 8}),
    "opt": ("OPTForCausalLM", SMALL | HEADS | {"ffn_dim": 70}),
    "opt, no biases, untied": (
        "OPTForCausalLM",
        SMALL | HEADS | {"ffn_dim": 70, "enable_bias": False, "tie_word_embeddings": False},
    ),
    "falcon, one key for all": ("FalconForCausalLM", FALCON),
    "falcon, grouped": (
        "FalconForCausalLM",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon, grouped, one norm": (
        "FalconForCausalLM",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 4, "num_ln_in_parallel_attn": 1},
    ),
    "falcon, alibi, one after the other": (
        "FalconForCausalLM",
        FALCON | SDPA | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "falcon, alibi, parallel": ("FalconForCausalLM", FALCON | SDPA | {"alibi": True}),
    "bloom": ("BloomForCausalLM", BLOOM | {"n_head": 4}),
    "bloom, heads that are no power of two": ("BloomForCausalLM", BLOOM | {"n_head": 6}),
    "phi": ("PhiForCausalLM", SMALL | {"hidden_size": 72}),
    "phi, one key for each query": ("PhiForCausalLM", SMALL | HEADS | {"hidden_size": 48}),
}


def tiny(variant: str) -> Any:
    """A model of transformers, large enough in every part to matter to its logits."""
    name, values = VARIANTS[variant]
    family = getattr(transformers, name)
    hf = family(family.config_class(**values))
    generator = torch.Generator().manual_seed(0)
    norms = {id(p) for m in hf.modules() if isinstance(m, torch.nn.LayerNorm) for p in m.parameters()}
    with torch.no_grad():
        for value in hf.parameters():
            noise = torch.randn(value.shape, generator=generator)
            if id(value) in norms:
                value.add_(noise * 0.2)
            else:
                value.copy_(noise * (1.3 / value.shape[1] ** 0.5 if value.dim() == 2 else 0.3))
    return hf.eval()


@pytest.mark.parametrize("variant", VARIANTS)
def test_layer_norm_families(ops: OpTable, tmp_path: Path, variant: str) -> None:
    hf = tiny(variant)
    ours = OurModel(saved(hf, tmp_path), ops, max_model_len=128)
    assert_same_as_transformers(hf, ours, steps=64)
    assert_results_belong_to_requests(ours)


@pytest.mark.parametrize(
    ("variant", "prefix", "mask"),
    [("gpt2", "transformer.", "h.0.attn.bias"), ("bloom", "transformer.", None)],
)
def test_names_of_older_files(ops: OpTable, variant: str, prefix: str, mask: str | None) -> None:
    """Files that hold the bare model, perhaps with its causal masks, mean the same."""
    checkpoint = memory_checkpoint(tiny(variant))
    expected = OurModel(checkpoint, ops, max_model_len=128).logits([3, 1, 4, 1, 5])
    checkpoint.tensors = {n.removeprefix(prefix): t for n, t in checkpoint.tensors.items()}
    if mask is not None:
        checkpoint.tensors[mask] = raw_tensor(mask, torch.ones(1, 1, 128, 128))
    assert torch.equal(OurModel(checkpoint, ops, max_model_len=128).logits([3, 1, 4, 1, 5]), expected)


@pytest.mark.parametrize(
    ("variant", "key", "value"),
    [
        ("stablelm", "qk_layernorm", True),
        ("phi", "qk_layernorm", True),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("opt", "do_layer_norm_before", False),
        ("opt", "word_embed_proj_dim", 30),
        ("bloom", "apply_residual_connection_post_layernorm", True),
        ("gptj", "rotary_dim", 7),
        ("gptj", "n_embd", "wide"),
    ],
)
def test_what_is_not_supported_is_named(ops: OpTable, variant: str, key: str, value: Any) -> None:
    checkpoint = memory_checkpoint(tiny(variant))
    checkpoint.config[key] = value
    with pytest.raises(CheckpointError, match=key):
        OurModel(checkpoint, ops, max_model_len=128)


def test_a_fused_tensor_that_is_too_short_is_named(ops: OpTable) -> None:
    checkpoint = memory_checkpoint(tiny("bloom"))
    name = "transformer.h.1.self_attention.query_key_value.weight"
    checkpoint.tensors[name] = checkpoint.tensors[name].rows(0, 100)
    with pytest.raises(CheckpointError, match=name):
        OurModel(checkpoint, ops, max_model_len=128)


def test_alibi_slopes_are_the_authors() -> None:
    assert alibi_slopes(8).tolist() == [2.0 ** -(head + 1) for head in range(8)]
    assert alibi_slopes(3).tolist() == [2.0**-4, 2.0**-8, 2.0**-2]
