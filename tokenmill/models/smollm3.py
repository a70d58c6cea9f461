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
    AttentionMLP,
    BuildContext,
    Decoder,
    DecoderDims,
    check_weights,
)
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.projections import load_pre_norm_layer, pre_norm_shapes
from tokenmill.models.rope_config import read_rope


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
    biases = {"attention_bias": c.attention_bias, "mlp_bias": c.mlp_bias}
    check_weights(weights, c.dims, pre_norm_shapes(c.dims, **biases))

    def layer(index: int) -> AttentionMLP:
        attention, mlp = load_pre_norm_layer(weights, index, **biases)
        return AttentionMLP(
            shape=c.dims.attention_shape(c.rope if c.rotates[index] else None, window=c.windows[index]),
            attention=attention,
            mlp=mlp,
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
