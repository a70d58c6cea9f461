"""What each request remembers: block tables that grow, slide and share, and recurrent state."""

from __future__ import annotations

from array import array
from collections.abc import Hashable

from tokenmill.cache.block_pool import BlockPool
from tokenmill.cache.plan import CachePlan, blocks_of
from tokenmill.cache.prefix_index import (
    NO_BLOCK,
    NO_SLOT,
    PrefixHit,
    PrefixIndex,
    PrefixNode,
    block_key,
    first_visible_block,
)
from tokenmill.cache.snapshots import last_place, next_kept
from tokenmill.cache.spec import BLOCK_SIZE
from tokenmill.cache.state_pool import StatePool


class RequestBlocks:
    """The block tables of one request.

    tables: one for each group, int32 block numbers in order of position; NO_BLOCK where a window has
    left. version: changes whenever a table does. first: for each group, its first entry not left.
    node: how far the prefix index knows this text; indexed: in blocks. state: slot of its recurrent
    state. prompt_len: tokens of the text when it was started. junction: where an earlier text parted
    from it, in tokens. trailing: the node of the snapshot that follows the growing answer.
    """

    __slots__ = (
        "first",
        "indexed",
        "junction",
        "node",
        "prompt_len",
        "state",
        "tables",
        "trailing",
        "version",
    )

    def __init__(self, num_groups: int) -> None:
        self.tables = [array("i") for _ in range(num_groups)]
        self.first = [0] * num_groups
        self.version = 0
        self.node: PrefixNode | None = None
        self.indexed = 0
        self.state = NO_SLOT
        self.prompt_len = 0
        self.junction = 0
        self.trailing: PrefixNode | None = None


class CacheManager:
    """Gives requests their blocks out of one pool, and remembers beginnings of texts.

    num_blocks: size of the pool. num_slots: recurrent states that fit, those of requests included.
    enable_prefix_caching: whether beginnings are found again.
    """

    def __init__(
        self, plan: CachePlan, num_blocks: int, num_slots: int = 0, *, enable_prefix_caching: bool
    ) -> None:
        self.plan = plan
        self.enable_prefix_caching = enable_prefix_caching
        self._windows = tuple(group.window for group in plan.groups)
        self._slides = any(self._windows)
        self._stateful = bool(plan.states)
        self.index = PrefixIndex(self._windows, stateful=self._stateful)
        self.pool = BlockPool(num_blocks, self.index.forget)
        self.states = StatePool(num_slots, self.index.forget_snapshot)

    @property
    def usage(self) -> float:
        """Share of the pool that requests use, of blocks or of slots, whichever is more."""
        pools = (
            (self.pool.num_free, self.pool.num_blocks),
            (self.states.num_free, self.states.num_slots),
        )
        return max((1 - free / size for free, size in pools if size), default=0.0)

    def forget_all(self) -> None:
        """Lose every text that no request uses."""
        self.states.forget_snapshots()
        self.pool.forget_cached()

    def new_request(self) -> RequestBlocks:
        """Empty tables."""
        return RequestBlocks(len(self._windows))

    def lookup(self, tokens: array[int], max_tokens: int, extra: Hashable) -> PrefixHit | None:
        """What is already held of the first ``max_tokens`` tokens; None if nothing."""
        if not self.enable_prefix_caching:
            return None
        hit = self.index.lookup(tokens, max_tokens, extra)
        return hit if hit.nodes or (self._stateful and hit.shared) else None

    def missing_blocks(self, blocks: RequestBlocks, num_tokens: int, max_chunk: int) -> int:
        """Most blocks that a request will still take to hold ``num_tokens``."""
        held = sum(len(t) - first for t, first in zip(blocks.tables, blocks.first, strict=True))
        return max(self.plan.blocks_held(num_tokens, max_chunk) - held, 0)

    def can_start(self, hit: PrefixHit | None, num_tokens: int, max_chunk: int, reserved: int) -> bool:
        """Whether a text of ``num_tokens`` fits beside what others hold, and will take (reserved)."""
        free = self.pool.num_free - reserved
        if self._stateful and not self.states.num_free:
            return False
        needed = self.plan.blocks_held(num_tokens, max_chunk)
        if hit is not None:
            for group, first in enumerate(hit.first_needed):
                for node in hit.nodes[first:]:
                    needed -= 1
                    free -= self.pool.references(node.blocks[group]) == 0
        return needed <= free

    def start(self, blocks: RequestBlocks, hit: PrefixHit | None, num_tokens: int) -> None:
        """Fill empty tables with what was found. num_tokens: of the text so far."""
        if self._stateful:
            self._start_state(blocks, hit, num_tokens)
        if not self.enable_prefix_caching:
            return
        blocks.node = self.index.root
        if hit is not None and hit.nodes:
            for group, first in enumerate(hit.first_needed):
                held = [node.blocks[group] for node in hit.nodes[first:]]
                for block in held:
                    self.pool.share(block)
                blocks.tables[group] = array("i", [NO_BLOCK] * first + held)
                blocks.first[group] = first
            blocks.node = hit.nodes[-1]
            blocks.indexed = len(hit.nodes)
        self.index.enter(blocks.node)
        blocks.version += 1

    def _start_state(self, blocks: RequestBlocks, hit: PrefixHit | None, num_tokens: int) -> None:
        found = hit.nodes[-1].snapshot if hit is not None and hit.nodes else None
        if found is not None:
            self.states.touch(found)
        blocks.state = self.states.allocate(found)
        blocks.prompt_len = num_tokens
        blocks.junction = hit.shared * BLOCK_SIZE if hit is not None else 0
        blocks.version += 1

    def chunk_limit(self, blocks: RequestBlocks, num_computed: int) -> int | None:
        """Tokens after which a step has to end, so that the state there can be kept; None if any do."""
        if not self._stateful or blocks.node is None:
            return None
        place = next_kept(num_computed, blocks.prompt_len, blocks.junction)
        return None if place is None else place - num_computed

    def grow(self, blocks: RequestBlocks, num_computed: int, num_tokens: int) -> bool:
        """Make room for the tokens from ``num_computed`` up to ``num_tokens``.

        Blocks that no token from ``num_computed`` on can see are given back. False, and no block taken,
        if the pool has too few.
        """
        wanted = blocks_of(num_tokens)
        tables = blocks.tables
        if not tables or len(tables[0]) >= wanted:  # all tables are equally long
            return True
        if self._slides:
            self._slide(blocks, num_computed)
        missing = wanted - len(tables[0])
        if missing * len(tables) > self.pool.num_free:
            return False
        allocate = self.pool.allocate
        for table in tables:
            for _ in range(missing):
                table.append(allocate())
        blocks.version += 1
        return True

    def _slide(self, blocks: RequestBlocks, num_computed: int) -> None:
        for group, window in enumerate(self._windows):
            first = first_visible_block(window, num_computed)
            table = blocks.tables[group]
            for index in range(blocks.first[group], min(first, len(table))):
                self.pool.release(table[index])
                table[index] = NO_BLOCK
                blocks.version += 1
            blocks.first[group] = max(first, blocks.first[group])

    def publish(
        self, blocks: RequestBlocks, tokens: array[int], num_computed: int, extra: Hashable
    ) -> None:
        """Let others find the blocks that the first ``num_computed`` tokens have filled."""
        node = blocks.node
        full = num_computed // BLOCK_SIZE
        if node is None or full <= blocks.indexed:
            return
        start = node
        for position in range(blocks.indexed, full):
            held = [table[position] for table in blocks.tables]
            node, taken = self.index.extend(node, block_key(tokens, position, extra), held)
            for block in taken:
                self.pool.mark_cached(block)
        blocks.node, blocks.indexed = node, full
        self.index.enter(node)
        self.index.leave(start)
        if self._stateful and num_computed == full * BLOCK_SIZE:
            self._keep_state(blocks, node, num_computed)

    def _keep_state(self, blocks: RequestBlocks, node: PrefixNode, num_computed: int) -> None:
        """Copy the state after ``node`` if it is worth keeping."""
        answering = num_computed > last_place(blocks.prompt_len)
        place = next_kept(num_computed - BLOCK_SIZE, blocks.prompt_len, blocks.junction)
        if node.snapshot != NO_SLOT or not (answering or place == num_computed):
            return
        old = blocks.trailing
        if answering and old is not None and old.snapshot != NO_SLOT:
            slot = old.snapshot
            self.index.forget_snapshot(slot)
            self.states.release(slot)
        if not self.states.num_free:
            return
        slot = self.states.allocate(blocks.state)
        self.index.add_snapshot(node, slot)
        above = node.parent
        while above is not None and above.snapshot == NO_SLOT:
            above = above.parent
        self.states.keep(slot, (node.depth - (above.depth if above is not None else 0)) * BLOCK_SIZE)
        if answering:
            blocks.trailing = node

    def release(self, blocks: RequestBlocks) -> None:
        """Give everything back. The end of a text is reused before its beginning is."""
        if blocks.state != NO_SLOT:
            self.states.release(blocks.state)
            blocks.state = NO_SLOT
        blocks.trailing = None
        for index in range(len(blocks.tables[0]) - 1 if blocks.tables else -1, -1, -1):
            for table in blocks.tables:
                if table[index] != NO_BLOCK:
                    self.pool.release(table[index])
        if blocks.node is not None:
            self.index.leave(blocks.node)
        num_groups = len(blocks.tables)
        blocks.tables = [array("i") for _ in range(num_groups)]
        blocks.first = [0] * num_groups
        blocks.node, blocks.indexed = None, 0
        blocks.version += 1
