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
    BuildContext,
    Decoder,
    DecoderDims,
    LayerPlan,
    LayerStyle,
    check_weights,
    layer_prefix,
)
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.projections import (
    Shapes,
    attention_shapes,
    load_attention,
    load_mlp,
    mlp_shapes,
    norm_shapes,
)
from tokenmill.models.rope_config import read_rope

ATTENTION_NORM = "input_layernorm"
MLP_NORM = "post_attention_layernorm"


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

    def layer_shapes(self) -> Shapes:
        """The tensors of one layer."""
        return (
            norm_shapes(self.dims, ATTENTION_NORM, MLP_NORM)
            | attention_shapes(self.dims, qkv_bias=self.attention_bias, out_bias=self.attention_bias)
            | mlp_shapes(self.dims, bias=self.mlp_bias)
        )


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Granite checkpoint; errors as ``build_model`` says."""
    c = GraniteConfig.from_hf(config)
    weights = context.weights
    model_len = context.model_len(c.rope.position_limit)
    check_weights(weights, c.dims, c.layer_shapes())

    def layer(index: int) -> LayerPlan:
        prefix = layer_prefix(index)
        return LayerPlan(
            shape=c.dims.attention_shape(c.rope, scale=c.attention_multiplier),
            attention=load_attention(
                weights,
                prefix,
                norm=ATTENTION_NORM,
                qkv_bias=c.attention_bias,
                out_bias=c.attention_bias,
            ),
            mlp=load_mlp(weights, prefix, norm=MLP_NORM, bias=c.mlp_bias),
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
