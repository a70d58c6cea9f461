"""Phi-3 and Phi-4: Llama with fused projections, longrope, and sometimes partly rotated heads.

arXiv:2404.14219, arXiv:2412.08905.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.layers.attention import AttentionWeights
from tokenmill.layers.mlp import MLPWeights
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
    norm_shapes,
)
from tokenmill.models.rope_config import read_rope

QKV = "self_attn.qkv_proj.weight"
OUT = "self_attn.o_proj.weight"
GATE_UP = "mlp.gate_up_proj.weight"
DOWN = "mlp.down_proj.weight"


@dataclass(frozen=True)
class Phi3Config:
    """window: tokens that each token sees; 0 for all."""

    dims: DecoderDims
    rope: RopeSpec
    window: int

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Phi3Config:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        dims = DecoderDims.read(read, default_eps=1e-5)
        return cls(
            dims=dims,
            rope=read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
            window=read.integer("sliding_window", 0),
        )

    def layer_shapes(self) -> Shapes:
        """The tensors of one layer."""
        d = self.dims
        return norm_shapes(d, ATTENTION_NORM, MLP_NORM) | {
            QKV: (d.q_width + 2 * d.kv_width, d.hidden_size),
            OUT: (d.hidden_size, d.q_width),
            GATE_UP: (2 * d.intermediate_size, d.hidden_size),
            DOWN: (d.hidden_size, d.intermediate_size),
        }


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Phi-3 checkpoint; errors as ``build_model`` says."""
    c = Phi3Config.from_hf(config)
    weights = context.weights
    model_len = context.model_len(c.rope.position_limit)
    check_weights(weights, c.dims, c.layer_shapes())

    def layer(index: int) -> AttentionMLP:
        prefix = layer_prefix(index)
        return AttentionMLP(
            shape=c.dims.attention_shape(c.rope, window=c.window),
            attention=AttentionWeights(
                norm=weights.norm(f"{prefix}{ATTENTION_NORM}.weight"),
                qkv=weights.linear(prefix + QKV),
                out=weights.linear(prefix + OUT),
            ),
            mlp=MLPWeights(
                norm=weights.norm(f"{prefix}{MLP_NORM}.weight"),
                gate_up=weights.linear(prefix + GATE_UP),
                down=weights.linear(prefix + DOWN),
            ),
        )

    return Decoder(
        context,
        c.dims,
        ropes={"all": rope_frequencies(c.rope, model_len)},
        layers=[layer(index) for index in range(c.dims.num_layers)],
        final_norm=weights.norm(FINAL_NORM),
        max_position=c.rope.position_limit,
    )
