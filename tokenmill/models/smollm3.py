"""SmolLM3: Llama, but every few layers know no positions.

The rotary embedding is left out of one layer in four (NoPE, arXiv:2501.18795).
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
class SmolLM3Config:
    """rotates: for each layer, whether it knows positions. windows: how many tokens a token sees."""

    dims: DecoderDims
    rope: RopeSpec
    attention_bias: bool
    mlp_bias: bool
    rotates: tuple[bool, ...]
    windows: tuple[int, ...]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> SmolLM3Config:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        dims = DecoderDims.read(read, default_tied=True)
        rotates = _rotates(read, dims.num_layers)
        slides = read.flag("use_sliding_window", False) and read.has("sliding_window")
        return cls(
            dims=dims,
            rope=read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
            attention_bias=read.flag("attention_bias", False),
            mlp_bias=read.flag("mlp_bias", False),
            rotates=rotates,
            windows=read.windows(dims.num_layers, is_sliding=lambda index: not rotates[index])
            if slides
            else (0,) * dims.num_layers,
        )

    def layer_shapes(self) -> Shapes:
        """The tensors of one layer."""
        return (
            norm_shapes(self.dims, ATTENTION_NORM, MLP_NORM)
            | attention_shapes(self.dims, qkv_bias=self.attention_bias, out_bias=self.attention_bias)
            | mlp_shapes(self.dims, bias=self.mlp_bias)
        )


def _rotates(read: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    if not read.has("no_rope_layers"):
        interval = read.integer("no_rope_layer_interval", 4)
        return tuple((index + 1) % interval != 0 for index in range(num_layers))
    # The name says the opposite of what it holds: 1 for layers that have a rotary embedding.
    return tuple(flag != 0 for flag in read.integers("no_rope_layers", num_layers))


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a SmolLM3 checkpoint; errors as ``build_model`` says."""
    c = SmolLM3Config.from_hf(config)
    weights = context.weights
    model_len = context.model_len(c.rope.position_limit)
    check_weights(weights, c.dims, c.layer_shapes())

    def layer(index: int) -> LayerPlan:
        prefix = layer_prefix(index)
        return LayerPlan(
            shape=c.dims.attention_shape(c.rope if c.rotates[index] else None, window=c.windows[index]),
            attention=load_attention(
                weights,
                prefix,
                norm=ATTENTION_NORM,
                qkv_bias=c.attention_bias,
                out_bias=c.attention_bias,
            ),
            mlp=load_mlp(weights, prefix, norm=MLP_NORM, bias=c.mlp_bias),
            rope="all" if c.rotates[index] else None,
        )

    return Decoder(
        context,
        c.dims,
        ropes={"all": rope_frequencies(c.rope, model_len)},
        layers=[layer(index) for index in range(c.dims.num_layers)],
        final_norm=weights.norm(FINAL_NORM),
        max_position=c.rope.position_limit,
    )
