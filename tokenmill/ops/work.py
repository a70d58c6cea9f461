"""What an operator reads and computes in a step: the figures that profiles are held against.

Only what has to come from memory is counted as read: weights, and cached keys and values, once each.
Activations stay in the CPU's caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokenmill.cache.spec import BLOCK_SIZE, FullAttentionSpec
from tokenmill.ops.table import LOGITS, Attention, Embed, Experts, Linear, OpParams, Weight

PLAIN = frozenset(("F32", "F16", "BF16"))
"""Formats whose matrices are multiplied in fp32; all others meet activations of int8."""


@dataclass(frozen=True)
class StepShape:
    """How large a step is. spans: of each request, the first and the last position that it computes.

    logits: rows whose logits are wanted.
    """

    spans: tuple[tuple[int, int], ...]
    logits: int

    @property
    def tokens(self) -> int:
        """Rows of the flat batch."""
        return sum(last - first + 1 for first, last in self.spans)

    def seen(self, window: int) -> tuple[int, int]:
        """(cached positions read, pairs of a query and a key), for a window (0: all)."""
        read = pairs = 0
        for first, last in self.spans:
            oldest = max(0, first - window + 1) if window else 0
            read += last - oldest + 1
            full = last + 1 if window == 0 else min(last + 1, window)
            # Positions below the window see all before them, the others a whole window.
            growing = range(first, min(last + 1, full))
            pairs += sum(growing) + len(growing) + max(0, last + 1 - max(first, full)) * window
        return read, pairs


@dataclass(frozen=True)
class Work:
    """bytes_read: from memory. operations: a multiply-add counts as two. arithmetic: of which kind."""

    bytes_read: float = 0.0
    operations: float = 0.0
    arithmetic: Literal["int8", "fp32"] = "fp32"

    def __add__(self, other: Work) -> Work:
        """Both; the kind of arithmetic is that of whichever has more of it."""
        larger = self if self.operations >= other.operations else other
        return Work(
            self.bytes_read + other.bytes_read, self.operations + other.operations, larger.arithmetic
        )


def work_of(params: OpParams, shape: StepShape) -> Work:
    """One run of an operator. Norms and rotations are counted as nothing."""
    if isinstance(params, Embed):
        return Work(shape.tokens * params.weight.nbytes / params.weight.out_features)
    if isinstance(params, Linear):
        rows = shape.logits if params.label == LOGITS else shape.tokens
        weight = params.weight
        operations = 2.0 * rows * weight.out_features * weight.in_features
        return Work(weight.nbytes if rows else 0, operations, "int8" if _quantised(weight) else "fp32")
    if isinstance(params, Experts):
        # Which experts are active is not known here; with few tokens each has its own.
        sizes = [(w.nbytes, w.out_features * w.in_features) for w in (*params.gate_up, *params.down)]
        share = min(1.0, shape.tokens * params.per_token / len(params.gate_up))
        per_row = 2.0 * params.per_token * sum(size for _, size in sizes) / len(params.gate_up)
        quantised = _quantised(params.gate_up[0])
        read = share * sum(n for n, _ in sizes)
        return Work(read, shape.tokens * per_row, "int8" if quantised else "fp32")
    if isinstance(params, Attention):
        read, pairs = shape.seen(params.window)
        spec = FullAttentionSpec(params.num_kv_heads, params.head_dim, params.cache_dtype)
        position_bytes = spec.page_bytes // BLOCK_SIZE
        return Work(read * position_bytes, 4.0 * params.head_dim * params.num_heads * pairs)
    return Work()


def _quantised(weight: Weight) -> bool:
    return not PLAIN.issuperset(weight.formats)
