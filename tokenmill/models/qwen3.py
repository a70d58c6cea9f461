"""Qwen3 (dense): Qwen2 without biases, but with an RMSNorm on each query and key head.

arXiv:2505.09388.
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
    ATTENTION_NORM,
    MLP_NORM,
    Shapes,
    attention_shapes,
    load_attention,
    load_mlp,
    mlp_shapes,
    norm_shapes,
)
from tokenmill.models.qwen2 import qwen_windows
from tokenmill.models.rope_config import read_rope

DEFAULT_HEAD_DIM = 128


@dataclass(frozen=True)
class Qwen3Config:
    """windows: for each layer, how many tokens a token sees; 0 for all."""

    dims: DecoderDims
    rope: RopeSpec
    attention_bias: bool
    windows: tuple[int, ...]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Qwen3Config:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        dims = DecoderDims.read(read, default_head_dim=DEFAULT_HEAD_DIM)
        return cls(
            dims=dims,
            rope=read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
            attention_bias=read.flag("attention_bias", False),
            windows=qwen_windows(read, dims.num_layers),
        )

    def layer_shapes(self) -> Shapes:
        """The tensors of one layer."""
        bias = self.attention_bias
        return (
            norm_shapes(self.dims, ATTENTION_NORM, MLP_NORM)
            | attention_shapes(self.dims, qkv_bias=bias, out_bias=bias, qk_norm=True)
            | mlp_shapes(self.dims)
        )


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Qwen3 checkpoint; errors as ``build_model`` says."""
    c = Qwen3Config.from_hf(config)
    weights = context.weights
    model_len = context.model_len(c.rope.position_limit)
    check_weights(weights, c.dims, c.layer_shapes())

    def layer(index: int) -> AttentionMLP:
        prefix = layer_prefix(index)
        return AttentionMLP(
            shape=c.dims.attention_shape(c.rope, window=c.windows[index]),
            attention=load_attention(
                weights,
                prefix,
                norm=ATTENTION_NORM,
                qkv_bias=c.attention_bias,
                out_bias=c.attention_bias,
                qk_norm=True,
            ),
            mlp=load_mlp(weights, prefix, norm=MLP_NORM),
        )

    return Decoder(
        context,
        c.dims,
        ropes={"all": rope_frequencies(c.rope, model_len, weights.rope_factors(c.rope.rotary_dim))},
        layers=[layer(index) for index in range(c.dims.num_layers)],
        final_norm=weights.norm(FINAL_NORM),
        max_position=c.rope.position_limit,
    )
