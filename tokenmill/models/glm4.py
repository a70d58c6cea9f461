"""GLM-4 (0414): norms before and after each branch, and a rotary embedding of half of each head.

Rotary pairs are neighbours; gate and up are one tensor. arXiv:2406.12793.
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
    check_weights,
    layer_prefix,
)
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.projections import (
    Shapes,
    attention_shapes,
    gate_up_sources,
    interleaved_sources,
    load_attention,
    load_mlp,
    mlp_shapes,
    norm_shapes,
)
from tokenmill.models.rope_config import read_rope

ATTENTION_NORM = "input_layernorm"
POST_ATTENTION_NORM = "post_self_attn_layernorm"
MLP_NORM = "post_attention_layernorm"
POST_MLP_NORM = "post_mlp_layernorm"


@dataclass(frozen=True)
class Glm4Config:
    """attention_bias: q, k and v have biases, and the output has none."""

    dims: DecoderDims
    rope: RopeSpec
    attention_bias: bool

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Glm4Config:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        dims = DecoderDims.read(read)
        return cls(
            dims=dims,
            rope=read_rope(
                read.merged({"partial_rotary_factor": 0.5}),
                head_dim=dims.head_dim,
                max_position=dims.max_position,
            ),
            attention_bias=read.flag("attention_bias", True),
        )

    def layer_shapes(self) -> Shapes:
        """The tensors of one layer."""
        return (
            norm_shapes(self.dims, ATTENTION_NORM, POST_ATTENTION_NORM, MLP_NORM, POST_MLP_NORM)
            | attention_shapes(self.dims, qkv_bias=self.attention_bias)
            | mlp_shapes(self.dims)
        )


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a GLM-4 checkpoint; errors as ``build_model`` says."""
    c = Glm4Config.from_hf(config)
    sources = interleaved_sources(
        c.dims, c.rope.rotary_dim, layers=range(c.dims.num_layers), bias=c.attention_bias
    )
    context = context.with_weights(context.weights.rearranged(sources | gate_up_sources(c.dims)))
    weights = context.weights
    model_len = context.model_len(c.rope.position_limit)
    check_weights(weights, c.dims, c.layer_shapes())

    def layer(index: int) -> AttentionMLP:
        prefix = layer_prefix(index)
        return AttentionMLP(
            shape=c.dims.attention_shape(c.rope),
            attention=load_attention(
                weights,
                prefix,
                norm=ATTENTION_NORM,
                post_norm=POST_ATTENTION_NORM,
                qkv_bias=c.attention_bias,
            ),
            mlp=load_mlp(weights, prefix, norm=MLP_NORM, post_norm=POST_MLP_NORM),
        )

    return Decoder(
        context,
        c.dims,
        ropes={"all": rope_frequencies(c.rope, model_len)},
        layers=[layer(index) for index in range(c.dims.num_layers)],
        final_norm=weights.norm(FINAL_NORM),
        max_position=c.rope.position_limit,
    )
