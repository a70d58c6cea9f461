"""Mixtral: Mistral with eight experts in each feed-forward layer, of which a token uses two.

arXiv:2401.04088. The softmax over all experts, divided by the sum of the chosen, is the paper's softmax
over the chosen.
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
from tokenmill.models.experts import ExpertDims, ExpertNames, expert_shapes, load_experts
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.projections import (
    ATTENTION_NORM,
    MLP_NORM,
    Shapes,
    attention_shapes,
    load_attention,
    norm_shapes,
)
from tokenmill.models.rope_config import read_rope

NAMES = ExpertNames("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2")


@dataclass(frozen=True)
class MixtralConfig:
    """window: tokens that a token sees; 0 for all."""

    dims: DecoderDims
    experts: ExpertDims
    rope: RopeSpec
    window: int

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> MixtralConfig:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        dims = DecoderDims.read(read, default_eps=1e-5)
        return cls(
            dims=dims,
            experts=ExpertDims.read(read, width_key="intermediate_size", renormalise=True),
            rope=read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
            window=read.integer("sliding_window", 0) if read.has("sliding_window") else 0,
        )

    def layer_shapes(self) -> Shapes:
        """The tensors of one layer."""
        return (
            norm_shapes(self.dims, ATTENTION_NORM, MLP_NORM)
            | attention_shapes(self.dims)
            | expert_shapes(self.dims, self.experts, NAMES)
        )


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Mixtral checkpoint; errors as ``build_model`` says."""
    c = MixtralConfig.from_hf(config)
    weights = context.weights
    model_len = context.model_len(c.rope.position_limit)
    check_weights(weights, c.dims, c.layer_shapes())

    def layer(index: int) -> AttentionMLP:
        prefix = layer_prefix(index)
        return AttentionMLP(
            shape=c.dims.attention_shape(c.rope, window=c.window),
            attention=load_attention(weights, prefix, norm=ATTENTION_NORM),
            mlp=load_experts(weights, prefix, c.experts, NAMES, norm=MLP_NORM),
        )

    return Decoder(
        context,
        c.dims,
        ropes={"all": rope_frequencies(c.rope, model_len)},
        layers=[layer(index) for index in range(c.dims.num_layers)],
        final_norm=weights.norm(FINAL_NORM),
        max_position=c.rope.position_limit,
    )
