"""Gemma 2: norms before and after each branch, soft-capped scores and logits, every other layer local.

arXiv:2408.00118. Norm weights are stored as w and mean 1 + w; embeddings are multiplied by the square
root of the hidden size.
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
    load_attention,
    load_mlp,
    mlp_shapes,
    norm_shapes,
)
from tokenmill.models.rope_config import read_rope

ATTENTION_NORM = "input_layernorm"
POST_ATTENTION_NORM = "post_attention_layernorm"
MLP_NORM = "pre_feedforward_layernorm"
POST_MLP_NORM = "post_feedforward_layernorm"
NORM_OFFSET = 1.0
DEFAULT_HEAD_DIM = 256
NO_CAP = 0.0


@dataclass(frozen=True)
class Gemma2Config:
    """windows: for each layer, how many tokens a token sees; 0 for all. scale: of attention scores."""

    dims: DecoderDims
    rope: RopeSpec
    scale: float
    windows: tuple[int, ...]
    attention_bias: bool
    attention_softcap: float
    logit_softcap: float

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Gemma2Config:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        dims = gemma_dims(read)
        return cls(
            dims=dims,
            rope=read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
            scale=read.number("query_pre_attn_scalar", dims.head_dim) ** -0.5,
            windows=read.windows(dims.num_layers, is_sliding=lambda index: index % 2 == 0),
            attention_bias=read.flag("attention_bias", False),
            attention_softcap=read.number("attn_logit_softcapping", NO_CAP),
            logit_softcap=read.number("final_logit_softcapping", NO_CAP),
        )

    def layer_shapes(self) -> Shapes:
        """The tensors of one layer."""
        bias = self.attention_bias
        return (
            norm_shapes(self.dims, ATTENTION_NORM, POST_ATTENTION_NORM, MLP_NORM, POST_MLP_NORM)
            | attention_shapes(self.dims, qkv_bias=bias, out_bias=bias)
            | mlp_shapes(self.dims)
        )


def gemma_dims(read: ConfigReader) -> DecoderDims:
    """The sizes of a Gemma, with the defaults that its configurations leave out."""
    if read.flag("use_bidirectional_attention", False):
        raise read.error("use_bidirectional_attention", "is true, but only causal attention runs here")
    return DecoderDims.read(
        read,
        act_key="hidden_activation",
        default_act="gelu_pytorch_tanh",
        default_head_dim=DEFAULT_HEAD_DIM,
        default_tied=True,
    )


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Gemma 2 checkpoint; errors as ``build_model`` says."""
    c = Gemma2Config.from_hf(config)
    weights = context.weights
    model_len = context.model_len(c.rope.position_limit)
    check_weights(weights, c.dims, c.layer_shapes())

    def layer(index: int) -> AttentionMLP:
        prefix = layer_prefix(index)
        return AttentionMLP(
            shape=c.dims.attention_shape(
                c.rope, window=c.windows[index], scale=c.scale, softcap=c.attention_softcap
            ),
            attention=load_attention(
                weights,
                prefix,
                norm=ATTENTION_NORM,
                post_norm=POST_ATTENTION_NORM,
                qkv_bias=c.attention_bias,
                out_bias=c.attention_bias,
                norm_offset=NORM_OFFSET,
            ),
            mlp=load_mlp(
                weights, prefix, norm=MLP_NORM, post_norm=POST_MLP_NORM, norm_offset=NORM_OFFSET
            ),
        )

    return Decoder(
        context,
        c.dims,
        ropes={"all": rope_frequencies(c.rope, model_len, weights.rope_factors(c.rope.rotary_dim))},
        layers=[layer(index) for index in range(c.dims.num_layers)],
        final_norm=weights.norm(FINAL_NORM, NORM_OFFSET),
        max_position=c.rope.position_limit,
        embed_scale=c.dims.hidden_size**0.5,
        logit_softcap=c.logit_softcap,
    )
