"""Granite 3 and 4 (dense): Llama with constants at its embeddings, scores, branches and logits.

The constants come from maximal update parametrisation, arXiv:2203.03466.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.layers.rope import RopeSpec, rope_frequencies
from tokenmill.models.decoder import (
    FINAL_NORM,
    AttentionMLP,
    BuildContext,
    Decoder,
    DecoderDims,
    LayerStyle,
    check_weights,
)
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.projections import load_pre_norm_layer, pre_norm_shapes
from tokenmill.models.rope_config import read_rope


@dataclass(frozen=True)
class GraniteConfig:
    """Multipliers of embeddings, scores and branches; logits are divided by ``logits_scaling``."""

    dims: DecoderDims
    rope: RopeSpec
    attention_bias: bool
    mlp_bias: bool
    embedding_multiplier: float
    attention_multiplier: float
    residual_multiplier: float
    logits_scaling: float

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> GraniteConfig:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        dims = DecoderDims.read(read)
        return cls(
            dims=dims,
            rope=read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
            attention_bias=read.flag("attention_bias", False),
            mlp_bias=read.flag("mlp_bias", False),
            embedding_multiplier=read.number("embedding_multiplier", 1.0),
            attention_multiplier=read.number("attention_multiplier", 1.0),
            residual_multiplier=read.number("residual_multiplier", 1.0),
            logits_scaling=read.number("logits_scaling", 1.0),
        )


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Granite checkpoint; errors as ``build_model`` says."""
    c = GraniteConfig.from_hf(config)
    weights = context.weights
    model_len = context.model_len(c.rope.position_limit)
    biases = {"attention_bias": c.attention_bias, "mlp_bias": c.mlp_bias}
    check_weights(weights, c.dims, pre_norm_shapes(c.dims, **biases))

    def layer(index: int) -> AttentionMLP:
        attention, mlp = load_pre_norm_layer(weights, index, **biases)
        return AttentionMLP(
            shape=c.dims.attention_shape(c.rope, scale=c.attention_multiplier),
            attention=attention,
            mlp=mlp,
        )

    return Decoder(
        context,
        c.dims,
        ropes={"all": rope_frequencies(c.rope, model_len, weights.rope_factors(c.rope.rotary_dim))},
        layers=[layer(index) for index in range(c.dims.num_layers)],
        final_norm=weights.norm(FINAL_NORM),
        max_position=c.rope.position_limit,
        embed_scale=c.embedding_multiplier,
        logit_scale=1.0 / c.logits_scaling,
        style=LayerStyle(branch_scale=c.residual_multiplier),
    )
