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

    def layer_shapes(self) -> Shapes:
        """The tensors of one layer."""
        return (
            norm_shapes(self.dims, ATTENTION_NORM, MLP_NORM)
            | attention_shapes(self.dims, qkv_bias=self.attention_bias, out_bias=self.attention_bias)
            | mlp_shapes(self.dims, bias=self.mlp_bias)
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
    check_weights(weights, c.dims, c.layer_shapes())

    def layer(index: int) -> LayerPlan:
        prefix = layer_prefix(index)
        return LayerPlan(
            shape=c.dims.attention_shape(c.rope, window=c.windows[index]),
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
    )
