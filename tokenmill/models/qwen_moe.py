"""Qwen2-MoE and Qwen3-MoE: Qwen2 and Qwen3 with experts in some or all feed-forward layers.

Qwen2-MoE (arXiv:2407.10671) adds a shared expert that every token uses, weighed by a gate of its own;
Qwen3-MoE (arXiv:2505.09388) has none.
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
    load_mlp,
    mlp_shapes,
    norm_shapes,
)
from tokenmill.models.qwen2 import qwen_windows
from tokenmill.models.rope_config import read_rope

QWEN2 = "Qwen2MoeForCausalLM"
QWEN2_NAMES = ExpertNames(shared="mlp.shared_expert", shared_gate="mlp.shared_expert_gate")
QWEN3_NAMES = ExpertNames()


@dataclass(frozen=True)
class QwenMoeConfig:
    """windows: for each layer, how many tokens a token sees; 0 for all. sparse: layers with experts.

    qkv_bias, out_bias, qk_norm: what attention has.
    """

    dims: DecoderDims
    experts: ExpertDims
    names: ExpertNames
    rope: RopeSpec
    windows: tuple[int, ...]
    sparse: frozenset[int]
    qkv_bias: bool
    out_bias: bool
    qk_norm: bool

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> QwenMoeConfig:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        second = QWEN2 in (config.get("architectures") or ())
        dims = DecoderDims.read(read)
        step = read.integer("decoder_sparse_step", 1)
        dense = set(config.get("mlp_only_layers") or ())
        bias = read.flag("attention_bias", False)
        return cls(
            dims=dims,
            experts=ExpertDims.read(
                read,
                width_key="moe_intermediate_size",
                shared_width_key="shared_expert_intermediate_size" if second else None,
            ),
            names=QWEN2_NAMES if second else QWEN3_NAMES,
            rope=read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
            windows=qwen_windows(read, dims.num_layers),
            sparse=frozenset(
                i for i in range(dims.num_layers) if i not in dense and not (i + 1) % step
            ),
            qkv_bias=read.flag("qkv_bias", True) if second else bias,
            out_bias=not second and bias,
            qk_norm=not second,
        )

    def layer_shapes(self, index: int) -> Shapes:
        """The tensors of one layer."""
        attention = attention_shapes(
            self.dims, qkv_bias=self.qkv_bias, out_bias=self.out_bias, qk_norm=self.qk_norm
        )
        sparse = index in self.sparse
        mlp = expert_shapes(self.dims, self.experts, self.names) if sparse else mlp_shapes(self.dims)
        return norm_shapes(self.dims, ATTENTION_NORM, MLP_NORM) | attention | mlp


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Qwen2-MoE or Qwen3-MoE checkpoint; errors as ``build_model`` says."""
    c = QwenMoeConfig.from_hf(config)
    weights = context.weights
    model_len = context.model_len(c.rope.position_limit)
    check_weights(weights, c.dims, c.layer_shapes)

    def layer(index: int) -> AttentionMLP:
        prefix = layer_prefix(index)
        return AttentionMLP(
            shape=c.dims.attention_shape(c.rope, window=c.windows[index]),
            attention=load_attention(
                weights,
                prefix,
                norm=ATTENTION_NORM,
                qkv_bias=c.qkv_bias,
                out_bias=c.out_bias,
                qk_norm=c.qk_norm,
            ),
            mlp=load_experts(weights, prefix, c.experts, c.names, norm=MLP_NORM)
            if index in c.sparse
            else load_mlp(weights, prefix, norm=MLP_NORM),
        )

    return Decoder(
        context,
        c.dims,
        ropes={"all": rope_frequencies(c.rope, model_len)},
        layers=[layer(index) for index in range(c.dims.num_layers)],
        final_norm=weights.norm(FINAL_NORM),
        max_position=c.rope.position_limit,
    )
