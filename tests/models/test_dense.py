"""Dense families whose differences lie in norms, multipliers and rotations, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

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
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}

VARIANTS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "ministral": (
        MinistralConfig,
        MinistralForCausalLM,
        {
            "sliding_window": 14,
            "head_dim": 12,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM, {}),
    "olmo2, tied, biases": (
        Olmo2Config,
        Olmo2ForCausalLM,
        {"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 6},
    ),
    "olmo3": (Olmo3Config, Olmo3ForCausalLM, {"num_hidden_layers": 4, "sliding_window": 12}),
    "olmo3, yarn where everything is seen": (
        Olmo3Config,
        Olmo3ForCausalLM,
        {
            "num_hidden_layers": 2,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "smollm3": (SmolLM3Config, SmolLM3ForCausalLM, {"num_hidden_layers": 4}),
    "smollm3, biases, sliding where nothing rotates": (
        SmolLM3Config,
        SmolLM3ForCausalLM,
        {
            "no_rope_layers": [1, 0, 1],
            "use_sliding_window": True,
            "sliding_window": 9,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "granite": (
        GraniteConfig,
        GraniteForCausalLM,
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.25,
            "residual_multiplier": 0.4,
            "logits_scaling": 0.8,
        },
    ),
    "granite, tied, biases": (
        GraniteConfig,
        GraniteForCausalLM,
        {
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "attention_multiplier": 0.3,
        },
    ),
    "cohere2": (
        Cohere2Config,
        Cohere2ForCausalLM,
        {"num_hidden_layers": 4, "sliding_window": 11, "logit_scale": 0.6},
    ),
    "cohere2, biases": (
        Cohere2Config,
        Cohere2ForCausalLM,
        {
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "sliding_window": 17,
            "logit_scale": 0.9,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "glm4": (Glm4Config, Glm4ForCausalLM, {"head_dim": 16}),
    "glm4, no biases, all rotated": (
        Glm4Config,
        Glm4ForCausalLM,
        {
            "head_dim": 12,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5000.0,
                "partial_rotary_factor": 1.0,
            },
        },
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_dense(ops: OpTable, tmp_path: Path, variant: str) -> None:
    config, model, changes = VARIANTS[variant]
    hf = randomise(model(config(**(SMALL | changes))))
    ours = OurModel(saved(hf, tmp_path), ops, max_model_len=128)
    assert_same_as_transformers(hf, ours, steps=64)
    assert_results_belong_to_requests(ours)
