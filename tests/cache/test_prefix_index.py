"""Random texts, hits and evictions against a plain account of what each group holds."""

from __future__ import annotations

import random
from array import array

import pytest

from tokenmill.cache.prefix_index import NO_BLOCK, PrefixIndex, block_key


class Account:
    """For each beginning (as a tuple of tokens), which groups hold its last block."""

    def __init__(self, windows: tuple[int, ...]) -> None:
        self.windows = windows
        self.held: dict[tuple[int, ...], set[int]] = {}

    def longest(self, tokens: list[int], limit: int) -> int:
        return max(
            (n for n in range(0, limit // 16 * 16 + 1, 16) if self._usable(tokens, n)), default=0
        )

    def _usable(self, tokens: list[int], length: int) -> bool:
        """Whether a token at ``length`` finds everything that it sees, in every group."""
        for group, window in enumerate(self.windows):
            first = max(0, length - window + 1) if window else 0
            for position in range(first, length):
                end = (position // 16 + 1) * 16
                if group not in self.held.get(tuple(tokens[:end]), ()):
                    return False
        return True


@pytest.mark.parametrize("windows", [(0,), (20,), (0, 40), (16, 0, 1, 70)])
@pytest.mark.parametrize("seed", range(3))
def test_lookup_finds_the_longest_usable_beginning(windows: tuple[int, ...], seed: int) -> None:
    rng = random.Random(seed)
    index, account = PrefixIndex(windows), Account(windows)
    owners: dict[int, tuple[tuple[int, ...], int]] = {}
    hits = set()
    for step in range(150):
        # Few distinct blocks, so that texts share beginnings.
        tokens = [t for _ in range(rng.randint(1, 6)) for t in [rng.randint(0, 1)] * 16]
        packed = array("i", tokens)
        limit = rng.randint(0, len(tokens))
        hit = index.lookup(packed, limit, None)
        assert hit.num_tokens == account.longest(tokens, limit)
        hits.add(hit.num_tokens)
        node = index.root
        for position in range(len(tokens) // 16):
            blocks = [
                step * 1000 + position * 10 + g if rng.random() < 0.95 else NO_BLOCK
                for g in range(len(windows))
            ]
            node, taken = index.extend(node, block_key(packed, position, None), blocks)
            beginning = tuple(tokens[: position * 16 + 16])
            for block in taken:
                owners[block] = (beginning, block % 10)
                account.held.setdefault(beginning, set()).add(block % 10)
        index.enter(node)
        index.leave(node)
        for block in rng.sample(sorted(owners), len(owners) // 8):
            beginning, group = owners.pop(block)
            account.held[beginning].discard(group)
            index.forget(block)
    assert len(hits) > 2
    for block in owners:
        index.forget(block)
    assert index.num_blocks == 0
    assert not index.root.children
