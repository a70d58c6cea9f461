"""What a layer remembers, said by the layer itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

BLOCK_SIZE = 16
"""Tokens in a block, whatever the model."""

STATE_ALIGNMENT = 64
"""Bytes of which the size of a recurrent state is a multiple."""


@dataclass(frozen=True)
class FullAttentionSpec:
    """Keys and values of every token."""

    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def page_bytes(self) -> int:
        """Bytes that one layer needs for one block of 16 tokens.

        Within a page come the keys, ``[num_kv_heads, head_dim, 16]`` (a vector register of
        consecutive elements is one coordinate of consecutive tokens), then the values,
        ``[num_kv_heads, 16, head_dim]``. Of int8, each head of each token has an fp32 scale: then come
        those of the keys and those of the values, ``[num_kv_heads, 16]`` each.
        """
        elements = self.head_dim * self.dtype.itemsize
        scale = torch.float32.itemsize if self.dtype is torch.int8 else 0
        return 2 * self.num_kv_heads * BLOCK_SIZE * (elements + scale)


@dataclass(frozen=True)
class SlidingWindowSpec(FullAttentionSpec):
    """Keys and values of the last ``window`` tokens, the current one included."""

    window: int


@dataclass(frozen=True)
class RecurrentSpec:
    """A state of fixed size that every token replaces (Mamba, gated delta net, short convolution).

    state_bytes: of one request, a multiple of 64. What lies in it is the layer's affair; all zeros is
    the state before the first token.
    """

    state_bytes: int

    def __post_init__(self) -> None:
        if self.state_bytes <= 0 or self.state_bytes % STATE_ALIGNMENT:
            raise ValueError(
                f"a state of {self.state_bytes} bytes is not a multiple of {STATE_ALIGNMENT}"
            )


AttentionSpec = FullAttentionSpec | SlidingWindowSpec
CacheSpec = AttentionSpec | RecurrentSpec
