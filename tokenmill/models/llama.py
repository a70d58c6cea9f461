"""Llama 1 to 3.x, SmolLM2 and Mistral.

Pre-norm decoder layers with grouped-query attention and a SiLU-gated MLP. Llama: arXiv:2302.13971,
arXiv:2407.21783; Mistral's sliding window: arXiv:2310.06825.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

MISTRAL, MINISTRAL = "MistralForCausalLM", "MinistralForCausalLM"


@dataclass(frozen=True)
class LlamaConfig:
    """windows: for each layer, how many tokens a token sees; 0 for all (Mistral, Ministral).

    Only some derivatives have biases.
    """

    dims: DecoderDims
    rope: RopeSpec
    attention_bias: bool
    mlp_bias: bool
    windows: tuple[int, ...]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        dims = DecoderDims.read(read)
        return cls(
            dims=dims,
            rope=read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
            attention_bias=read.flag("attention_bias", False),
            mlp_bias=read.flag("mlp_bias", False),
            windows=_windows(read, dims.num_layers, config.get("architectures", ())),
        )


def _windows(read: ConfigReader, num_layers: int, architectures: Sequence[str]) -> tuple[int, ...]:
    if MINISTRAL in architectures:
        return read.windows(num_layers, is_sliding=lambda _: read.has("sliding_window"))
    window = read.integer("sliding_window", 0) if MISTRAL in architectures else 0
    return (window,) * num_layers


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Llama or Mistral checkpoint; errors as ``build_model`` says."""
    c = LlamaConfig.from_hf(config)
    weights = context.weights
    model_len = context.model_len(c.rope.position_limit)
    biases = {"attention_bias": c.attention_bias, "mlp_bias": c.mlp_bias}
    check_weights(weights, c.dims, pre_norm_shapes(c.dims, **biases))

    def layer(index: int) -> AttentionMLP:
        attention, mlp = load_pre_norm_layer(weights, index, **biases)
        return AttentionMLP(
            shape=c.dims.attention_shape(c.rope, window=c.windows[index]),
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
    )
