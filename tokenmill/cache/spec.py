"""What a layer remembers, said by the layer itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

BLOCK_SIZE = 16
"""Tokens in a block, whatever the model."""


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


CacheSpec = FullAttentionSpec | SlidingWindowSpec
