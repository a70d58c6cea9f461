"""A fixed number of equal blocks, counted by reference and reused in least-recently-used order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class BlockPool:
    """Hands out block numbers 0 to num_blocks - 1; every operation takes constant time.

    A block is in use (referenced by requests), or free. A free block may still be worth keeping: the
    prefix index has marked it as cached, and it is given away only when no other is left, the one
    released longest ago first. ``on_evict(block)`` is called before that happens.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._references = [0] * num_blocks
        self._cached = bytearray(num_blocks)
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached_free: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._blank) + len(self._cached_free)

    def references(self, block: int) -> int:
        """How many requests use a block."""
        return self._references[block]

    def is_cached(self, block: int) -> bool:
        """Whether the prefix index can find the block's contents."""
        return bool(self._cached[block])

    def allocate(self) -> int:
        """A block with one reference; its contents are undefined. Raises IndexError if none is free."""
        if self._blank:
            block = self._blank.pop()
        elif self._cached_free:
            block, _ = self._cached_free.popitem(last=False)
            self._cached[block] = 0
            self._on_evict(block)
        else:
            raise IndexError("no block is free")
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more reference to a block that is in use or cached."""
        if self._references[block] == 0:
            del self._cached_free[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One reference less; the last one makes the block free."""
        left = self._references[block] - 1
        if left < 0:
            raise ValueError(f"block {block} was released more often than it was taken")
        self._references[block] = left
        if left == 0:
            if self._cached[block]:
                self._cached_free[block] = None
            else:
                self._blank.append(block)

    def forget_cached(self) -> None:
        """Keep no contents of free blocks any longer."""
        while self._cached_free:
            block, _ = self._cached_free.popitem(last=False)
            self._cached[block] = 0
            self._on_evict(block)
            self._blank.append(block)

    def mark_cached(self, block: int) -> None:
        """The prefix index knows this block, which is in use: keep its contents when it is released."""
        self._cached[block] = 1
