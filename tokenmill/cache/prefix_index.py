"""Which beginnings of texts the cache still holds.

A tree with one node for each block of 16 tokens that follows another. A child is found by hashing its
token ids and extra keys below its parent, and a dictionary compares the keys themselves on a hit, so a
node stands for exactly one beginning, whatever the hashes do. The keys are bytes, whose hash is
seeded in each process, so prompts cannot be made to collide.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from tokenmill.cache.spec import BLOCK_SIZE

NO_BLOCK = -1
NO_SLOT = -1

BlockKey = tuple[bytes, Hashable]
"""Token ids of a block, and what else its contents depend on (salt, adapter, media)."""


def block_key(tokens: array[int], index: int, extra: Hashable) -> BlockKey:
    """The key of the block at ``index`` of a text (int32 token ids)."""
    return tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE].tobytes(), extra


class PrefixNode:
    """The beginning of a text that ends with this block.

    blocks: for each group, the block that holds it, or NO_BLOCK. snapshot: slot of the recurrent state
    after it, or NO_SLOT. users: requests that stand here. depth: blocks up to here.
    """

    __slots__ = ("blocks", "children", "depth", "key", "parent", "snapshot", "users")

    def __init__(self, parent: PrefixNode | None, key: BlockKey, num_groups: int) -> None:
        self.parent = parent
        self.key = key
        self.blocks = [NO_BLOCK] * num_groups
        self.children: dict[BlockKey, PrefixNode] = {}
        self.snapshot = NO_SLOT
        self.users = 0
        self.depth: int = parent.depth + 1 if parent is not None else 0


@dataclass(frozen=True)
class PrefixHit:
    """The longest beginning that all groups hold.

    nodes: one for each of its blocks. first_needed: for each group, the index of the first block that
    later tokens can still see; the blocks before it need not be held. shared: blocks that would do, had
    a recurrent state been kept there.
    """

    nodes: tuple[PrefixNode, ...]
    first_needed: tuple[int, ...]
    shared: int

    @property
    def num_tokens(self) -> int:
        """Tokens that need not be computed."""
        return len(self.nodes) * BLOCK_SIZE


def first_visible_block(window: int, position: int) -> int:
    """Index of the first block that a token at ``position`` sees (window 0: all)."""
    return max(0, position - window + 1) // BLOCK_SIZE if window else 0


class PrefixIndex:
    """Finds and remembers beginnings.

    windows: for each group, tokens seen at most (0: all). stateful: whether a recurrent state is needed
    as well.
    """

    def __init__(self, windows: Sequence[int], *, stateful: bool = False) -> None:
        self._windows = tuple(windows)
        self._stateful = stateful
        self._snapshots: dict[int, PrefixNode] = {}
        self._root = PrefixNode(None, (b"", None), len(windows))
        self._owners: dict[int, tuple[PrefixNode, int]] = {}

    @property
    def root(self) -> PrefixNode:
        """The empty beginning."""
        return self._root

    @property
    def num_blocks(self) -> int:
        """Blocks that the index can find."""
        return len(self._owners)

    def lookup(self, tokens: array[int], max_tokens: int, extra: Hashable) -> PrefixHit:
        """The longest beginning of ``tokens``, at most ``max_tokens`` long, that every group holds."""
        nodes: list[PrefixNode] = []
        node = self._root
        for index in range(max_tokens // BLOCK_SIZE):
            child = node.children.get(block_key(tokens, index, extra))
            if child is None:
                break
            nodes.append(child)
            node = child
        length = self._held_by_full(nodes)
        shared = length
        length = self._held_by_the_rest(nodes, length)
        first = tuple(first_visible_block(window, length * BLOCK_SIZE) for window in self._windows)
        return PrefixHit(tuple(nodes[:length]), first, shared)

    def _held_by_full(self, nodes: list[PrefixNode]) -> int:
        full = [group for group, window in enumerate(self._windows) if not window]
        for index, node in enumerate(nodes):
            if any(node.blocks[group] == NO_BLOCK for group in full):
                return index
        return len(nodes)

    def _held_by_the_rest(self, nodes: list[PrefixNode], length: int) -> int:
        """The longest beginning, at most ``length`` blocks, of whose end every window is held, and the
        recurrent state if there is one."""
        sliding = [group for group, window in enumerate(self._windows) if window]
        runs = dict.fromkeys(sliding, 0)
        longest = 0
        for index in range(length):
            end = index + 1
            held = not self._stateful or nodes[index].snapshot != NO_SLOT
            for group in sliding:
                runs[group] = runs[group] + 1 if nodes[index].blocks[group] != NO_BLOCK else 0
                needed = end - first_visible_block(self._windows[group], end * BLOCK_SIZE)
                held = held and runs[group] >= needed
            if held:
                longest = end
        return longest

    def enter(self, node: PrefixNode) -> None:
        """A request stands at this node: the node stays, even if no group holds it any more."""
        node.users += 1

    def leave(self, node: PrefixNode) -> None:
        """The request has moved on or ended."""
        node.users -= 1
        self._prune(node)

    def extend(
        self, node: PrefixNode, key: BlockKey, blocks: Sequence[int]
    ) -> tuple[PrefixNode, list[int]]:
        """The node that follows ``node`` by ``key``, and which of ``blocks`` (one for each group, or
        NO_BLOCK) it now remembers; the others hold what another block holds already."""
        child = node.children.get(key)
        if child is None:
            child = node.children[key] = PrefixNode(node, key, len(self._windows))
        taken: list[int] = []
        for group, block in enumerate(blocks):
            if block != NO_BLOCK and child.blocks[group] == NO_BLOCK:
                child.blocks[group] = block
                self._owners[block] = (child, group)
                taken.append(block)
        return child, taken

    def forget(self, block: int) -> None:
        """The block is about to be overwritten."""
        node, group = self._owners.pop(block)
        node.blocks[group] = NO_BLOCK
        self._prune(node)

    def add_snapshot(self, node: PrefixNode, slot: int) -> None:
        """The state after ``node``, which has none, is kept in ``slot``."""
        node.snapshot = slot
        self._snapshots[slot] = node

    def forget_snapshot(self, slot: int) -> None:
        """The slot is about to be overwritten."""
        node = self._snapshots.pop(slot)
        node.snapshot = NO_SLOT
        self._prune(node)

    def _prune(self, node: PrefixNode) -> None:
        """Drop nodes that lead nowhere."""
        while node.parent is not None and not node.users and not node.children:
            if node.snapshot != NO_SLOT or any(block != NO_BLOCK for block in node.blocks):
                return
            del node.parent.children[node.key]
            node = node.parent
