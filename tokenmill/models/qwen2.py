"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and a sliding window in some layers.

arXiv:2407.10671, arXiv:2412.15115.
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
from tokenmill.models.rope_config import read_rope


@dataclass(frozen=True)
class Qwen2Config:
    """windows: for each layer, how many tokens a token sees; 0 for all."""

    dims: DecoderDims
    rope: RopeSpec
    windows: tuple[int, ...]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Qwen2Config:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        dims = DecoderDims.read(read)
        return cls(
            dims=dims,
            rope=read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
            windows=qwen_windows(read, dims.num_layers),
        )

    def layer_shapes(self) -> Shapes:
        """The tensors of one layer."""
        return (
            norm_shapes(self.dims, ATTENTION_NORM, MLP_NORM)
            | attention_shapes(self.dims, qkv_bias=True)
            | mlp_shapes(self.dims)
        )


def qwen_windows(read: ConfigReader, num_layers: int) -> tuple[int, ...]:
    """Qwen's rule: only with ``use_sliding_window``, in the layers from ``max_window_layers`` on."""
    if not read.flag("use_sliding_window", False) or not read.has("sliding_window"):
        return (0,) * num_layers
    first = read.integer("max_window_layers", 28, minimum=0)
    return read.windows(num_layers, is_sliding=lambda index: index >= first)


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Qwen2 checkpoint; errors as ``build_model`` says."""
    c = Qwen2Config.from_hf(config)
    weights = context.weights
    model_len = context.model_len(c.rope.position_limit)
    check_weights(weights, c.dims, c.layer_shapes())

    def layer(index: int) -> AttentionMLP:
        prefix = layer_prefix(index)
        return AttentionMLP(
            shape=c.dims.attention_shape(c.rope, window=c.windows[index]),
            attention=load_attention(weights, prefix, norm=ATTENTION_NORM, qkv_bias=True),
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
