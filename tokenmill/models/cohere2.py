"""Command A and Command R7B (Cohere2): attention beside the MLP, three layers in four local.

Local layers have a rotary embedding of neighbouring pairs, the others know no positions
(arXiv:2504.00698). Norms are LayerNorms without biases.
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
    layer_prefix,
)
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.projections import (
    Shapes,
    attention_shapes,
    interleaved_sources,
    load_attention,
    load_mlp,
    mlp_shapes,
    norm_shapes,
)
from tokenmill.models.rope_config import read_rope

NORM = "input_layernorm"


@dataclass(frozen=True)
class Cohere2Config:
    """windows: for each layer, how many tokens a token sees; 0 for all. Only layers with one rotate."""

    dims: DecoderDims
    rope: RopeSpec
    attention_bias: bool
    windows: tuple[int, ...]
    logit_scale: float

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Cohere2Config:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config, aliases={"rms_norm_eps": "layer_norm_eps"})
        dims = DecoderDims.read(read, default_eps=1e-5, default_tied=True)
        every = read.integer("sliding_window_pattern", 4)
        return cls(
            dims=dims,
            rope=read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
            attention_bias=read.flag("attention_bias", False),
            windows=read.windows(dims.num_layers, is_sliding=lambda index: (index + 1) % every != 0),
            logit_scale=read.number("logit_scale", 0.0625),
        )

    def layer_shapes(self) -> Shapes:
        """The tensors of one layer."""
        return (
            norm_shapes(self.dims, NORM)
            | attention_shapes(self.dims, qkv_bias=self.attention_bias, out_bias=self.attention_bias)
            | mlp_shapes(self.dims)
        )


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Cohere2 checkpoint; errors as ``build_model`` says."""
    c = Cohere2Config.from_hf(config)
    context = context.with_weights(
        context.weights.rearranged(
            interleaved_sources(
                c.dims,
                c.rope.rotary_dim,
                layers=[index for index, window in enumerate(c.windows) if window],
                bias=c.attention_bias,
            )
        )
    )
    weights = context.weights
    model_len = context.model_len(c.rope.position_limit)
    check_weights(weights, c.dims, c.layer_shapes())

    def layer(index: int) -> AttentionMLP:
        prefix, window = layer_prefix(index), c.windows[index]
        return AttentionMLP(
            shape=c.dims.attention_shape(c.rope if window else None, window=window),
            attention=load_attention(
                weights,
                prefix,
                norm=NORM,
                qkv_bias=c.attention_bias,
                out_bias=c.attention_bias,
            ),
            mlp=load_mlp(weights, prefix, norm=NORM),
            rope="all" if window else None,
        )

    return Decoder(
        context,
        c.dims,
        ropes={"all": rope_frequencies(c.rope, model_len)},
        layers=[layer(index) for index in range(c.dims.num_layers)],
        final_norm=weights.norm(FINAL_NORM),
        max_position=c.rope.position_limit,
        logit_scale=c.logit_scale,
        style=LayerStyle(layer_norm=True, parallel=True),
    )
