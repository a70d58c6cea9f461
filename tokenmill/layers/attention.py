"""Self-attention with grouped heads, rotary positions and a paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tokenmill.cache.spec import CacheSpec, FullAttentionSpec, SlidingWindowSpec
from tokenmill.engine.step import LayerCache, StepBuffers
from tokenmill.layers.scratch import Scratch
from tokenmill.ops.table import Attention, Linear, OpTable, RmsNorm, RopeStore, Weight


@dataclass(frozen=True)
class AttentionShape:
    """What is known of an attention layer from the configuration.

    rotary_dim: coordinates of a head that are rotated; 0 is none. window: tokens that a token sees,
    itself included; 0 is all. softcap: 0 is none.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """What this layer remembers, kept in ``dtype``."""
        if self.window:
            return SlidingWindowSpec(self.num_kv_heads, self.head_dim, dtype, self.window)
        return FullAttentionSpec(self.num_kv_heads, self.head_dim, dtype)


@dataclass(frozen=True)
class AttentionWeights:
    """The parameters of one attention layer.

    norm: before the projection, fp32 [hidden]; None is no norm. norm_bias: of a LayerNorm.
    qkv: rows of q, k, then v. q_norm, k_norm: RMSNorm per head, fp32 [head_dim], or over all heads at
    once, fp32 [heads * head_dim], if whole_norm. post_norm: RMSNorm of the branch before it is added to
    the residual stream (Gemma). slopes: ALiBi, fp32 [num_heads].
    """

    norm: torch.Tensor | None
    qkv: Weight
    out: Weight
    qkv_bias: torch.Tensor | None = None
    out_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    post_norm: torch.Tensor | None = None
    norm_bias: torch.Tensor | None = None
    whole_norm: bool = False
    slopes: torch.Tensor | None = None


class AttentionLayer:
    """``hidden += scale * post_norm(out(attend(rotate(qkv(norm(hidden))))))``.

    rope: the step's RopeTable output, fp32 [max_tokens, rotary_dim].
    layer_norm: the norm before the projection is a LayerNorm, not an RMSNorm.
    scale: multiplies the branch (Granite); there is no post_norm beside it.
    """

    def __init__(
        self,
        ops: OpTable,
        shape: AttentionShape,
        weights: AttentionWeights,
        scratch: Scratch,
        rope: torch.Tensor,
        *,
        eps: float,
        cache_dtype: torch.dtype,
        layer_norm: bool = False,
        scale: float = 1.0,
    ) -> None:
        s = shape
        self.cache_specs = (s.cache_spec(cache_dtype),)
        self._rope = rope
        self._qkv = ops.bind(
            Linear(
                weights.qkv,
                norm=weights.norm,
                norm_bias=weights.norm_bias,
                centre=layer_norm,
                eps=eps,
                bias=weights.qkv_bias,
                label="qkv",
            )
        )
        self._rope_store = ops.bind(
            RopeStore(
                num_heads=s.num_heads,
                num_kv_heads=s.num_kv_heads,
                head_dim=s.head_dim,
                rotary_dim=s.rotary_dim,
                cache_dtype=cache_dtype,
                q_norm=weights.q_norm,
                k_norm=weights.k_norm,
                eps=eps,
                whole_norm=weights.whole_norm,
            )
        )
        self._attend = ops.bind(
            Attention(
                num_heads=s.num_heads,
                num_kv_heads=s.num_kv_heads,
                head_dim=s.head_dim,
                scale=s.scale,
                cache_dtype=cache_dtype,
                softcap=s.softcap,
                window=s.window,
                slopes=weights.slopes,
            )
        )
        self._out = ops.bind(
            Linear(
                weights.out,
                bias=weights.out_bias,
                accumulate=weights.post_norm is None,
                scale=scale,
                label="attention out",
            )
        )
        self._post_norm = None
        if weights.post_norm is not None:
            self._post_norm = ops.bind(RmsNorm(weights.post_norm, eps, accumulate=True))
            self._branch = scratch.get("branch", weights.out.out_features)
        self._qkv_buffer = scratch.get("qkv", weights.qkv.out_features)
        self._attended = scratch.get("attended", s.num_heads * s.head_dim)

    def read(self, hidden: torch.Tensor, step: StepBuffers) -> None:
        """The first half: take what is needed from hidden, which is free to change then."""
        self._qkv(step.num_tokens, hidden, self._qkv_buffer)

    def add(self, hidden: torch.Tensor, step: StepBuffers, caches: Sequence[LayerCache]) -> None:
        """The second half: add to hidden, fp32 [max_tokens, hidden_size], this layer's output."""
        rows = step.num_tokens
        (cache,) = caches
        self._rope_store(step, self._rope, self._qkv_buffer, cache)
        self._attend(step, self._qkv_buffer, cache, self._attended)
        if self._post_norm is None:
            self._out(rows, self._attended, hidden)
        else:
            self._out(rows, self._attended, self._branch)
            self._post_norm(rows, self._branch, hidden)
