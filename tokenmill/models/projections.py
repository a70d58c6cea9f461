"""The tensors of a layer as most families name and shape them: separate q, k, v, gate and up."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tokenmill.layers.attention import AttentionWeights
from tokenmill.layers.mlp import MLPWeights
from tokenmill.models.decoder import DecoderDims, layer_prefix
from tokenmill.models.loader import WeightLoader
from tokenmill.models.rearranged import Source, pairs_apart

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
OUT = "self_attn.o_proj"
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
DOWN = "mlp.down_proj"

ATTENTION_NORM = "input_layernorm"
MLP_NORM = "post_attention_layernorm"
"""Norms of families that have one before each branch, and none after it."""

Shapes = dict[str, tuple[int, ...]]


def attention_shapes(
    d: DecoderDims,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
    whole_norm: bool = False,
) -> Shapes:
    """The projections of an attention layer, without the norm before it.

    whole_norm: the norms of q and k span all heads.
    """
    widths = dict(zip(QKV, (d.q_width, d.kv_width, d.kv_width), strict=True))
    shapes: Shapes = {f"{name}.weight": (width, d.hidden_size) for name, width in widths.items()}
    shapes[f"{OUT}.weight"] = (d.hidden_size, d.q_width)
    if qkv_bias:
        shapes |= {f"{name}.bias": (width,) for name, width in widths.items()}
    if out_bias:
        shapes[f"{OUT}.bias"] = (d.hidden_size,)
    if qk_norm:
        shapes["self_attn.q_norm.weight"] = (d.q_width if whole_norm else d.head_dim,)
        shapes["self_attn.k_norm.weight"] = (d.kv_width if whole_norm else d.head_dim,)
    return shapes


def mlp_shapes(d: DecoderDims, *, bias: bool = False, gated: bool = True) -> Shapes:
    """The projections of an MLP, without the norm before it; a plain one has no gate."""
    entering = GATE_UP if gated else GATE_UP[1:]
    shapes: Shapes = {f"{name}.weight": (d.intermediate_size, d.hidden_size) for name in entering}
    shapes[f"{DOWN}.weight"] = (d.hidden_size, d.intermediate_size)
    if bias:
        shapes |= {f"{name}.bias": (d.intermediate_size,) for name in entering}
        shapes[f"{DOWN}.bias"] = (d.hidden_size,)
    return shapes


def norm_shapes(d: DecoderDims, *names: str) -> Shapes:
    """Norms of the residual stream."""
    return {f"{name}.weight": (d.hidden_size,) for name in names}


def load_attention(
    weights: WeightLoader,
    prefix: str,
    *,
    norm: str | None,
    post_norm: str | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
    whole_norm: bool = False,
    norm_offset: float = 0.0,
) -> AttentionWeights:
    """The attention layer whose names start with ``prefix``; norm, post_norm: names of its norms."""

    def norm_of(name: str | None) -> torch.Tensor | None:
        return None if name is None else weights.norm(f"{prefix}{name}.weight", norm_offset)

    return AttentionWeights(
        norm=norm_of(norm),
        qkv=weights.linear(*(f"{prefix}{name}.weight" for name in QKV)),
        out=weights.linear(f"{prefix}{OUT}.weight"),
        qkv_bias=weights.bias(*(f"{prefix}{name}.bias" for name in QKV)) if qkv_bias else None,
        out_bias=weights.bias(f"{prefix}{OUT}.bias") if out_bias else None,
        q_norm=norm_of("self_attn.q_norm" if qk_norm else None),
        k_norm=norm_of("self_attn.k_norm" if qk_norm else None),
        post_norm=norm_of(post_norm),
        whole_norm=whole_norm,
    )


def load_mlp(
    weights: WeightLoader,
    prefix: str,
    *,
    norm: str | None,
    post_norm: str | None = None,
    bias: bool = False,
    norm_offset: float = 0.0,
) -> MLPWeights:
    """The gated MLP whose names start with ``prefix``; norm, post_norm: names of its norms."""

    def norm_of(name: str | None) -> torch.Tensor | None:
        return None if name is None else weights.norm(f"{prefix}{name}.weight", norm_offset)

    return MLPWeights(
        norm=norm_of(norm),
        gate_up=weights.linear(*(f"{prefix}{name}.weight" for name in GATE_UP)),
        down=weights.linear(f"{prefix}{DOWN}.weight"),
        gate_up_bias=weights.bias(*(f"{prefix}{name}.bias" for name in GATE_UP)) if bias else None,
        down_bias=weights.bias(f"{prefix}{DOWN}.bias") if bias else None,
        post_norm=norm_of(post_norm),
    )


def interleaved_sources(
    d: DecoderDims, rotary_dim: int, *, layers: Iterable[int], bias: bool
) -> dict[str, Source]:
    """q and k of the given layers, for a checkpoint whose rotary pairs are neighbours."""
    kinds = ("weight", "bias") if bias else ("weight",)
    orders = {
        QKV[0]: pairs_apart(d.num_heads, d.head_dim, rotary_dim),
        QKV[1]: pairs_apart(d.num_kv_heads, d.head_dim, rotary_dim),
    }
    names = ((layer_prefix(index) + name, rows) for index in layers for name, rows in orders.items())
    return {f"{name}.{kind}": Source(f"{name}.{kind}", rows) for name, rows in names for kind in kinds}


def gate_up_sources(d: DecoderDims) -> dict[str, Source]:
    """gate and up, for a checkpoint that keeps them in one tensor, gate first."""
    size = d.intermediate_size
    rows = dict(zip(GATE_UP, torch.split(torch.arange(2 * size), size), strict=True))
    return {
        f"{layer_prefix(index)}{name}.weight": Source(
            f"{layer_prefix(index)}mlp.gate_up_proj.weight", part
        )
        for index in range(d.num_layers)
        for name, part in rows.items()
    }


def pre_norm_shapes(d: DecoderDims, *, attention_bias: bool, mlp_bias: bool) -> Shapes:
    """The tensors of a layer of Llama and those who changed nothing of it."""
    return (
        norm_shapes(d, ATTENTION_NORM, MLP_NORM)
        | attention_shapes(d, qkv_bias=attention_bias, out_bias=attention_bias)
        | mlp_shapes(d, bias=mlp_bias)
    )


def load_pre_norm_layer(
    weights: WeightLoader, index: int, *, attention_bias: bool, mlp_bias: bool
) -> tuple[AttentionWeights, MLPWeights]:
    """A layer with the tensors of ``pre_norm_shapes``."""
    prefix = layer_prefix(index)
    attention = load_attention(
        weights, prefix, norm=ATTENTION_NORM, qkv_bias=attention_bias, out_bias=attention_bias
    )
    return attention, load_mlp(weights, prefix, norm=MLP_NORM, bias=mlp_bias)
