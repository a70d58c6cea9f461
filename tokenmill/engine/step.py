"""The flat batch: the inputs of one step, in buffers that never move.

Native programs are recorded once over these addresses and replayed for every step, so the
buffers are allocated at their capacity and only their contents change.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StepBuffers:
    """All int32, contiguous. T, R, L: capacity in tokens, requests and logit rows.

    num_tokens, num_reqs, num_logits: [1] each, how much of the capacity this step uses.
    token_ids, positions: [T]. Tokens of a request are consecutive, in order of position.
    token_req: [T], index of the request that a token belongs to.
    query_start: [R + 1], where each request's tokens start in the flat batch.
    block_tables: one [R, max_blocks] per cache group: block numbers in order of position.
        An entry that a sliding window has left behind is -1 and is never read.
    state_slots: [R], where each request's recurrent state is.
    logit_rows: [L], which tokens of the flat batch need logits.
    """

    num_tokens: torch.Tensor
    num_reqs: torch.Tensor
    num_logits: torch.Tensor
    token_ids: torch.Tensor
    positions: torch.Tensor
    token_req: torch.Tensor
    query_start: torch.Tensor
    block_tables: tuple[torch.Tensor, ...]
    state_slots: torch.Tensor
    logit_rows: torch.Tensor

    @property
    def max_tokens(self) -> int:
        """Capacity in tokens."""
        return self.token_ids.numel()

    @classmethod
    def allocate(
        cls, *, max_tokens: int, max_reqs: int, max_logits: int, max_blocks: int, num_groups: int
    ) -> StepBuffers:
        """Zeroed buffers of the given capacities."""

        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32)

        return cls(
            num_tokens=ints(1),
            num_reqs=ints(1),
            num_logits=ints(1),
            token_ids=ints(max_tokens),
            positions=ints(max_tokens),
            token_req=ints(max_tokens),
            query_start=ints(max_reqs + 1),
            block_tables=tuple(ints(max_reqs, max_blocks) for _ in range(num_groups)),
            state_slots=ints(max_reqs),
            logit_rows=ints(max_logits),
        )


@dataclass(frozen=True)
class LayerCache:
    """Where one layer's pages lie.

    pool: uint8, the whole block pool. A page starts at
        ``block * block_bytes + offset`` and is laid out as ``CacheSpec.page_bytes`` says.
    block_table: the layer's group's table of this step ([R, max_blocks]).
    window: tokens seen at most (0: all).
    """

    pool: torch.Tensor
    block_bytes: int
    offset: int
    block_table: torch.Tensor
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    window: int


@dataclass(frozen=True)
class StateCache:
    """Where one layer's recurrent states lie.

    pool: uint8, all slots. A state starts at ``slot * slot_bytes + offset``. slots: of each request of
    this step ([R]).
    """

    pool: torch.Tensor
    slot_bytes: int
    offset: int
    slots: torch.Tensor


Cache = LayerCache | StateCache
"""What the engine hands to a layer that remembers something."""
