"""Llama 1 to 3.x, SmolLM2 and Mistral.

Pre-norm decoder layers with grouped-query attention and a SiLU-gated MLP. Llama: arXiv:2302.13971,
arXiv:2407.21783; Mistral's sliding window: arXiv:2310.06825.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.layers.attention import AttentionShape, AttentionWeights
from tokenmill.layers.mlp import MLPWeights
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
from tokenmill.models.loader import WeightLoader
from tokenmill.models.rope_config import read_rope

ROPE_FREQS = "rope_freqs.weight"


@dataclass(frozen=True)
class LlamaConfig:
    """window: tokens that each token sees, 0 for all (Mistral). Only some derivatives have biases."""

    dims: DecoderDims
    rope: RopeSpec
    attention_bias: bool
    mlp_bias: bool
    window: int

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        dims = DecoderDims.read(read)
        window = 0
        if "MistralForCausalLM" in config.get("architectures", ()) and read.has("sliding_window"):
            window = read.integer("sliding_window")
        return cls(
            dims=dims,
            rope=read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
            attention_bias=read.flag("attention_bias", False),
            mlp_bias=read.flag("mlp_bias", False),
            window=window,
        )

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of one layer."""
        d = self.dims
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (d.hidden_size,),
            "self_attn.q_proj.weight": (d.q_width, d.hidden_size),
            "self_attn.k_proj.weight": (d.kv_width, d.hidden_size),
            "self_attn.v_proj.weight": (d.kv_width, d.hidden_size),
            "self_attn.o_proj.weight": (d.hidden_size, d.q_width),
            "post_attention_layernorm.weight": (d.hidden_size,),
            "mlp.gate_proj.weight": (d.intermediate_size, d.hidden_size),
            "mlp.up_proj.weight": (d.intermediate_size, d.hidden_size),
            "mlp.down_proj.weight": (d.hidden_size, d.intermediate_size),
        }
        if self.attention_bias:
            shapes |= {
                "self_attn.q_proj.bias": (d.q_width,),
                "self_attn.k_proj.bias": (d.kv_width,),
                "self_attn.v_proj.bias": (d.kv_width,),
                "self_attn.o_proj.bias": (d.hidden_size,),
            }
        if self.mlp_bias:
            shapes |= {
                "mlp.gate_proj.bias": (d.intermediate_size,),
                "mlp.up_proj.bias": (d.intermediate_size,),
                "mlp.down_proj.bias": (d.hidden_size,),
            }
        return shapes


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Llama or Mistral checkpoint."""
    c = LlamaConfig.from_hf(config)
    limit = c.rope.position_limit
    model_len = context.model_len(limit)
    weights = context.weights
    check_weights(weights, c.dims, c.layer_shapes())
    factors = weights.vector(ROPE_FREQS) if weights.has(ROPE_FREQS) else None
    return Decoder(
        context,
        c.dims,
        layers=weights.map(lambda index: _layer(weights, c, index), range(c.dims.num_layers)),
        ropes={"all": rope_frequencies(c.rope, model_len, factors)},
        final_norm=weights.norm(FINAL_NORM),
        max_position=limit,
    )


def _layer(weights: WeightLoader, c: LlamaConfig, index: int) -> LayerPlan:
    attn = layer_prefix(index) + "self_attn."
    mlp = layer_prefix(index) + "mlp."
    qkv = [attn + name for name in ("q_proj", "k_proj", "v_proj")]
    gate_up = [mlp + name for name in ("gate_proj", "up_proj")]
    return LayerPlan(
        shape=AttentionShape(
            num_heads=c.dims.num_heads,
            num_kv_heads=c.dims.num_kv_heads,
            head_dim=c.dims.head_dim,
            rotary_dim=c.rope.rotary_dim,
            scale=c.dims.head_dim**-0.5,
            window=c.window,
        ),
        attention=AttentionWeights(
            norm=weights.norm(layer_prefix(index) + "input_layernorm.weight"),
            qkv=weights.linear(*(name + ".weight" for name in qkv)),
            out=weights.linear(attn + "o_proj.weight"),
            qkv_bias=weights.bias(*(name + ".bias" for name in qkv)) if c.attention_bias else None,
            out_bias=weights.bias(attn + "o_proj.bias") if c.attention_bias else None,
        ),
        mlp=MLPWeights(
            norm=weights.norm(layer_prefix(index) + "post_attention_layernorm.weight"),
            gate_up=weights.linear(*(name + ".weight" for name in gate_up)),
            down=weights.linear(mlp + "down_proj.weight"),
            gate_up_bias=weights.bias(*(name + ".bias" for name in gate_up)) if c.mlp_bias else None,
            down_bias=weights.bias(mlp + "down_proj.bias") if c.mlp_bias else None,
        ),
    )
