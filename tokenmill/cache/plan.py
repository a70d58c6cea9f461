"""How the layers of a model share blocks of one size.

Layers with equal specs are of one kind. A kind is split into groups so that what a group of layers
remembers of 16 tokens fits in one block, whatever its kind; all groups then draw on one pool of equal
blocks, and memory moves freely between them.

Layers with a recurrent state keep it in slots of another pool: one slot holds the states of all such
layers of one request, or of one beginning that is kept (a snapshot).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.cache.spec import (
    BLOCK_SIZE,
    AttentionSpec,
    CacheSpec,
    RecurrentSpec,
    SlidingWindowSpec,
)

GROUP_COST = 0.02
"""Share of memory that we waste rather than keep one more block table per request."""


@dataclass(frozen=True)
class LayerSlot:
    """Where what a layer remembers lies in a block or slot. offset: bytes from its start."""

    layer: int
    offset: int


@dataclass(frozen=True)
class CacheGroup:
    """Layers of one kind that share a block table."""

    spec: AttentionSpec
    slots: tuple[LayerSlot, ...]

    @property
    def window(self) -> int:
        """Tokens that the layers see at most; 0 is all."""
        return self.spec.window if isinstance(self.spec, SlidingWindowSpec) else 0

    def blocks_held(self, num_tokens: int, max_chunk: int) -> int:
        """Most blocks that a request of ``num_tokens`` holds at once if it advances by at most
        ``max_chunk`` tokens a step."""
        blocks = blocks_of(num_tokens)
        if not self.window:
            return blocks
        # A step that computes n tokens sees n + window - 1 of them, and both ends may cut a block.
        return min(blocks, (max_chunk + self.window - 2) // BLOCK_SIZE + 2)


@dataclass(frozen=True)
class CachePlan:
    """The groups of a model, and the size of a block.

    block_bytes: bytes of one block, in which each layer of a group has its page; 0 without groups.
    states: layers with a recurrent state. slot_bytes: bytes of all their states together.
    """

    groups: tuple[CacheGroup, ...]
    block_bytes: int
    states: tuple[LayerSlot, ...] = ()
    slot_bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """Bytes that one block of every group really holds."""
        return sum(len(group.slots) * group.spec.page_bytes for group in self.groups)

    @property
    def wasted_share(self) -> float:
        """The share of a full set of blocks that holds nothing."""
        return 1 - self.used_bytes / (self.block_bytes * len(self.groups)) if self.groups else 0.0

    def blocks_held(self, num_tokens: int, max_chunk: int) -> int:
        """Most blocks, of all groups together, that a request of ``num_tokens`` holds at once."""
        return sum(group.blocks_held(num_tokens, max_chunk) for group in self.groups)


def blocks_of(num_tokens: int) -> int:
    """Blocks that hold ``num_tokens`` tokens."""
    return -(-num_tokens // BLOCK_SIZE)


def plan_groups(specs: Sequence[CacheSpec]) -> CachePlan:
    """Groups and state slots for a model's layers (``specs`` in layer order).

    The groups fit one block size with little waste.

    A block holds a whole number of pages of the kind that it fits best. More groups waste less but
    cost a block table each, so the choice weighs both. Raises ValueError if there are no layers.
    """
    if not specs:
        raise ValueError("a model without layers has nothing to remember")
    kinds: dict[AttentionSpec, list[int]] = {}
    states: list[LayerSlot] = []
    slot_bytes = 0
    for layer, spec in enumerate(specs):
        if isinstance(spec, RecurrentSpec):
            states.append(LayerSlot(layer, slot_bytes))
            slot_bytes += spec.state_bytes
        else:
            kinds.setdefault(spec, []).append(layer)
    if not kinds:
        return CachePlan((), 0, tuple(states), slot_bytes)
    needed = sum(spec.page_bytes * len(layers) for spec, layers in kinds.items())
    largest_page = max(spec.page_bytes for spec in kinds)
    candidates = {
        spec.page_bytes * count for spec, layers in kinds.items() for count in range(1, len(layers) + 1)
    }

    def cost(block_bytes: int) -> tuple[float, int]:
        groups = sum(
            -(-len(layers) // (block_bytes // spec.page_bytes)) for spec, layers in kinds.items()
        )
        return groups * block_bytes / needed - 1 + GROUP_COST * groups, block_bytes

    block_bytes = min((size for size in candidates if size >= largest_page), key=cost)
    groups: list[CacheGroup] = []
    for spec, layers in kinds.items():
        size = block_bytes // spec.page_bytes
        for start in range(0, len(layers), size):
            members = layers[start : start + size]
            slots = (LayerSlot(layer, index * spec.page_bytes) for index, layer in enumerate(members))
            groups.append(CacheGroup(spec, tuple(slots)))
    return CachePlan(tuple(groups), block_bytes, tuple(states), slot_bytes)
