"""Families with experts against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.models.harness import (
    OurModel,
    assert_results_belong_to_requests,
    assert_same_as_transformers,
    memory_checkpoint,
    randomise,
    saved,
)
from tokenmill.errors import CheckpointError
from tokenmill.ops.table import OpTable

SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
}
QWEN = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 32}

VARIANTS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "mixtral": (MixtralConfig, MixtralForCausalLM, {"num_local_experts": 5}),
    "mixtral, sliding, three of four": (
        MixtralConfig,
        MixtralForCausalLM,
        {"num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 9},
    ),
    "qwen2-moe": (
        Qwen2MoeConfig,
        Qwen2MoeForCausalLM,
        {**QWEN, "shared_expert_intermediate_size": 48},
    ),
    "qwen2-moe, renormalised, every second layer": (
        Qwen2MoeConfig,
        Qwen2MoeForCausalLM,
        {
            **QWEN,
            "shared_expert_intermediate_size": 64,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen3-moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {**QWEN, "head_dim": 16}),
    "qwen3-moe, renormalised, one dense layer": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {**QWEN, "head_dim": 24, "norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_moe(ops: OpTable, tmp_path: Path, variant: str) -> None:
    config, model, changes = VARIANTS[variant]
    hf = randomise(model(config(**(SMALL | changes))))
    ours = OurModel(saved(hf, tmp_path), ops, max_model_len=128)
    assert_same_as_transformers(hf, ours)
    assert_results_belong_to_requests(ours)


def test_more_experts_for_a_token_than_there_are(ops: OpTable) -> None:
    hf = MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=2))
    checkpoint = memory_checkpoint(hf)
    checkpoint.config["num_experts_per_tok"] = 3
    with pytest.raises(CheckpointError, match="num_experts_per_tok is 3, of only 2 experts"):
        OurModel(checkpoint, ops)


def test_a_missing_expert_is_named(ops: OpTable, tmp_path: Path) -> None:
    hf = MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=4))
    checkpoint = saved(hf, tmp_path)
    checkpoint.config["num_local_experts"] = 5
    with pytest.raises(CheckpointError, match=r"missing: .*experts\.4\.w1"):
        OurModel(checkpoint, ops)
