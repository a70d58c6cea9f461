"""The tensors of a layer as most families name and shape them: separate q, k, v, gate and up."""

from __future__ import annotations

import torch

from tokenmill.layers.attention import AttentionWeights
from tokenmill.layers.mlp import MLPWeights
from tokenmill.models.decoder import DecoderDims
from tokenmill.models.loader import WeightLoader

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
OUT = "self_attn.o_proj"
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
DOWN = "mlp.down_proj"

Shapes = dict[str, tuple[int, ...]]


def attention_shapes(
    d: DecoderDims, *, qkv_bias: bool = False, out_bias: bool = False, qk_norm: bool = False
) -> Shapes:
    """The projections of an attention layer, without the norm before it."""
    widths = dict(zip(QKV, (d.q_width, d.kv_width, d.kv_width), strict=True))
    shapes: Shapes = {f"{name}.weight": (width, d.hidden_size) for name, width in widths.items()}
    shapes[f"{OUT}.weight"] = (d.hidden_size, d.q_width)
    if qkv_bias:
        shapes |= {f"{name}.bias": (width,) for name, width in widths.items()}
    if out_bias:
        shapes[f"{OUT}.bias"] = (d.hidden_size,)
    if qk_norm:
        shapes["self_attn.q_norm.weight"] = (d.head_dim,)
        shapes["self_attn.k_norm.weight"] = (d.head_dim,)
    return shapes


def mlp_shapes(d: DecoderDims, *, bias: bool = False) -> Shapes:
    """The projections of a gated MLP, without the norm before it."""
    shapes: Shapes = {f"{name}.weight": (d.intermediate_size, d.hidden_size) for name in GATE_UP}
    shapes[f"{DOWN}.weight"] = (d.hidden_size, d.intermediate_size)
    if bias:
        shapes |= {f"{name}.bias": (d.intermediate_size,) for name in GATE_UP}
        shapes[f"{DOWN}.bias"] = (d.hidden_size,)
    return shapes


def norm_shapes(d: DecoderDims, *names: str) -> Shapes:
    """Norms of the residual stream."""
    return {f"{name}.weight": (d.hidden_size,) for name in names}


def load_attention(
    weights: WeightLoader,
    prefix: str,
    *,
    norm: str,
    post_norm: str | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
    norm_offset: float = 0.0,
) -> AttentionWeights:
    """The attention layer whose names start with ``prefix``; norm, post_norm: names of its norms."""

    def norm_of(name: str | None) -> torch.Tensor | None:
        return None if name is None else weights.norm(f"{prefix}{name}.weight", norm_offset)

    return AttentionWeights(
        norm=weights.norm(f"{prefix}{norm}.weight", norm_offset),
        qkv=weights.linear(*(f"{prefix}{name}.weight" for name in QKV)),
        out=weights.linear(f"{prefix}{OUT}.weight"),
        qkv_bias=weights.bias(*(f"{prefix}{name}.bias" for name in QKV)) if qkv_bias else None,
        out_bias=weights.bias(f"{prefix}{OUT}.bias") if out_bias else None,
        q_norm=norm_of("self_attn.q_norm" if qk_norm else None),
        k_norm=norm_of("self_attn.k_norm" if qk_norm else None),
        post_norm=norm_of(post_norm),
    )


def load_mlp(
    weights: WeightLoader,
    prefix: str,
    *,
    norm: str,
    post_norm: str | None = None,
    bias: bool = False,
    norm_offset: float = 0.0,
) -> MLPWeights:
    """The gated MLP whose names start with ``prefix``; norm, post_norm: names of its norms."""
    return MLPWeights(
        norm=weights.norm(f"{prefix}{norm}.weight", norm_offset),
        gate_up=weights.linear(*(f"{prefix}{name}.weight" for name in GATE_UP)),
        down=weights.linear(f"{prefix}{DOWN}.weight"),
        gate_up_bias=weights.bias(*(f"{prefix}{name}.bias" for name in GATE_UP)) if bias else None,
        down_bias=weights.bias(f"{prefix}{DOWN}.bias") if bias else None,
        post_norm=None
        if post_norm is None
        else weights.norm(f"{prefix}{post_norm}.weight", norm_offset),
    )
