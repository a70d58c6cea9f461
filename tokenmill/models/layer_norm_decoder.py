"""Decoders with LayerNorms: what GPT-2's many descendants share.

A family's file reads its configuration and says where each tensor is found; from here on, all have the
names that ``projections`` uses, and differ in the fields of ``Layout``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tokenmill.layers.attention import AttentionWeights
from tokenmill.layers.embedding import EmbeddingExtras
from tokenmill.layers.mlp import MLPWeights
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
from tokenmill.models.projections import (
    ATTENTION_NORM,
    DOWN,
    GATE_UP,
    MLP_NORM,
    OUT,
    QKV,
    Shapes,
    attention_shapes,
    mlp_shapes,
    norm_shapes,
)
from tokenmill.models.rearranged import Source

POSITIONS = "model.embed_positions.weight"
EMBEDDING_NORM = "model.embed_norm"
FINAL_BIAS = "model.norm.bias"
LOGIT_BIAS = "lm_head.bias"


@dataclass(frozen=True)
class Layout:
    """How a family differs from the others.

    rope: None for families that know positions in another way. slopes: ALiBi, fp32 [num_heads].
    learned_positions: the table has max_position rows. parallel: attention and MLP read the same
    stream. mlp_norm: name of the norm before the MLP, which may be that before attention. gated: the
    MLP has a gate. window: tokens that each token sees; 0 for all.
    """

    rope: RopeSpec | None = None
    slopes: torch.Tensor | None = None
    learned_positions: bool = False
    parallel: bool = False
    mlp_norm: str = MLP_NORM
    gated: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    logit_bias: bool = False
    embedding_norm: bool = False
    window: int = 0

    def layer_shapes(self, dims: DecoderDims) -> Shapes:
        """The tensors of one layer."""
        norms = norm_shapes(dims, *{ATTENTION_NORM, self.mlp_norm})
        return (
            norms
            | {name.removesuffix("weight") + "bias": shape for name, shape in norms.items()}
            | attention_shapes(dims, qkv_bias=self.qkv_bias, out_bias=self.out_bias)
            | mlp_shapes(dims, bias=self.mlp_bias, gated=self.gated)
        )

    def other_shapes(self, dims: DecoderDims) -> Shapes:
        """The tensors outside of the layers, beyond those that every decoder has."""
        width = (dims.hidden_size,)
        shapes: Shapes = {FINAL_BIAS: width}
        if self.learned_positions:
            shapes[POSITIONS] = (dims.max_position, dims.hidden_size)
        if self.embedding_norm:
            shapes |= {f"{EMBEDDING_NORM}.weight": width, f"{EMBEDDING_NORM}.bias": width}
        if self.logit_bias:
            shapes[LOGIT_BIAS] = (dims.vocab_size,)
        return shapes


def layer_sources(num_layers: int, prefix: str, names: Mapping[str, Source]) -> dict[str, Source]:
    """Where all layers' tensors are found.

    prefix: of the checkpoint's names, before the layer's number. names: within a layer, ours to the
    checkpoint's, without ``.weight`` or ``.bias``.
    """
    return {
        f"{layer_prefix(index)}{own}.{kind}": Source(
            f"{prefix}{index}.{source.name}.{kind}",
            source.rows,
            source.transposed and kind == "weight",
        )
        for index in range(num_layers)
        for own, source in names.items()
        for kind in ("weight", "bias")
    }


def top_sources(embedding: str, final_norm: str, embedding_norm: str = "") -> dict[str, Source]:
    """Where the tensors outside of the layers are found."""
    sources = {
        "model.embed_tokens.weight": Source(f"{embedding}.weight"),
        FINAL_NORM: Source(f"{final_norm}.weight"),
        FINAL_BIAS: Source(f"{final_norm}.bias"),
    }
    if embedding_norm:
        for kind in ("weight", "bias"):
            sources[f"{EMBEDDING_NORM}.{kind}"] = Source(f"{embedding_norm}.{kind}")
    return sources


def alibi_slopes(num_heads: int) -> torch.Tensor:
    """The slopes of ALiBi, fp32 [num_heads].

    A geometric series for a power of two heads; others take the rest from that of twice as many, every
    second one (the authors' rule).
    """

    def series(count: int) -> list[float]:
        return [2.0 ** (-8.0 * (head + 1) / count) for head in range(count)]

    whole = 1 << (num_heads.bit_length() - 1)
    slopes = series(whole) + series(2 * whole)[0::2][: num_heads - whole]
    return torch.tensor(slopes, dtype=torch.float32)


def build_layer_norm_decoder(context: BuildContext, dims: DecoderDims, layout: Layout) -> Decoder:
    """The model of a checkpoint whose tensors have our names; errors as ``build_model`` says."""
    weights = context.weights
    limit = layout.rope.position_limit if layout.rope else dims.max_position
    model_len = context.model_len(limit)
    check_weights(weights, dims, layout.layer_shapes(dims), layout.other_shapes(dims))

    def bias(prefix: str, names: tuple[str, ...], wanted: bool) -> torch.Tensor | None:
        return weights.bias(*(f"{prefix}{name}.bias" for name in names)) if wanted else None

    def layer(index: int) -> AttentionMLP:
        prefix = layer_prefix(index)
        up = GATE_UP if layout.gated else GATE_UP[1:]
        return AttentionMLP(
            shape=dims.attention_shape(layout.rope, window=layout.window),
            attention=AttentionWeights(
                norm=weights.norm(f"{prefix}{ATTENTION_NORM}.weight"),
                norm_bias=bias(prefix, (ATTENTION_NORM,), True),
                qkv=weights.linear(*(f"{prefix}{name}.weight" for name in QKV)),
                out=weights.linear(f"{prefix}{OUT}.weight"),
                qkv_bias=bias(prefix, QKV, layout.qkv_bias),
                out_bias=bias(prefix, (OUT,), layout.out_bias),
                slopes=layout.slopes,
            ),
            mlp=MLPWeights(
                norm=weights.norm(f"{prefix}{layout.mlp_norm}.weight"),
                norm_bias=bias(prefix, (layout.mlp_norm,), True),
                gate_up=weights.linear(*(f"{prefix}{name}.weight" for name in up)),
                down=weights.linear(f"{prefix}{DOWN}.weight"),
                gate_up_bias=bias(prefix, up, layout.mlp_bias),
                down_bias=bias(prefix, (DOWN,), layout.mlp_bias),
                gated=layout.gated,
            ),
            rope="all" if layout.rope else None,
        )

    extras = EmbeddingExtras(
        positions=weights.linear(POSITIONS, precise=True) if layout.learned_positions else None,
        norm=weights.norm(f"{EMBEDDING_NORM}.weight") if layout.embedding_norm else None,
        norm_bias=weights.bias(f"{EMBEDDING_NORM}.bias") if layout.embedding_norm else None,
    )
    return Decoder(
        context,
        dims,
        ropes={"all": rope_frequencies(layout.rope, model_len)} if layout.rope else {},
        layers=[layer(index) for index in range(dims.num_layers)],
        final_norm=weights.norm(FINAL_NORM),
        final_norm_bias=weights.bias(FINAL_BIAS),
        logit_bias=weights.bias(LOGIT_BIAS) if layout.logit_bias else None,
        max_position=limit,
        extras=extras,
        style=LayerStyle(layer_norm=True, parallel=layout.parallel),
    )
