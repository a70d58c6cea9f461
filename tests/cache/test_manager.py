"""Prefix hits over several groups, windows that slide, and eviction."""

from __future__ import annotations

from array import array

import pytest
import torch

from tokenmill.cache.manager import CacheManager, RequestBlocks
from tokenmill.cache.plan import plan_groups
from tokenmill.cache.prefix_index import NO_BLOCK
from tokenmill.cache.spec import CacheSpec, FullAttentionSpec, SlidingWindowSpec

FULL = FullAttentionSpec(1, 2, torch.float32)
WINDOW = SlidingWindowSpec(1, 2, torch.float32, 32)


def manager_of(*specs: CacheSpec, num_blocks: int = 64, caching: bool = True) -> CacheManager:
    return CacheManager(plan_groups(specs), num_blocks, enable_prefix_caching=caching)


def tokens_of(count: int, start: int = 0) -> array[int]:
    return array("i", range(start, start + count))


def compute(
    manager: CacheManager, tokens: array[int], chunk: int = 16, extra: object = None
) -> tuple[RequestBlocks, int]:
    """Run a text through the cache, chunk by chunk; its blocks and how many tokens were found."""
    blocks = manager.new_request()
    hit = manager.lookup(tokens, len(tokens) - 1, extra)
    manager.start(blocks, hit, len(tokens))
    found = done = hit.num_tokens if hit else 0
    while done < len(tokens):
        end = min(done + chunk, len(tokens))
        assert manager.grow(blocks, done, end)
        done = end
        manager.publish(blocks, tokens, done, extra)
    return blocks, found


def test_a_beginning_is_found_again_while_in_use_and_after() -> None:
    manager = manager_of(FULL)
    tokens = tokens_of(40)
    first, found = compute(manager, tokens)
    assert found == 0
    second, found = compute(manager, tokens)
    assert found == 32
    assert first.tables[0][:2] == second.tables[0][:2]
    assert first.tables[0][2] != second.tables[0][2]
    manager.release(first)
    manager.release(second)
    assert manager.pool.num_free == 64
    third, found = compute(manager, tokens)
    assert found == 32
    manager.release(third)


def test_the_last_token_is_never_found() -> None:
    manager = manager_of(FULL)
    manager.release(compute(manager, tokens_of(48))[0])
    assert compute(manager, tokens_of(48))[1] == 32
    assert compute(manager, tokens_of(49))[1] == 48


@pytest.mark.parametrize("place", [0, 15, 16, 31])
def test_one_other_token_ends_the_hit(place: int) -> None:
    manager = manager_of(FULL)
    compute(manager, tokens_of(33))
    other = tokens_of(33)
    other[place] = 999
    assert compute(manager, other)[1] == place // 16 * 16


def test_the_same_block_after_another_beginning_is_another_block() -> None:
    manager = manager_of(FULL)
    compute(manager, tokens_of(16) + tokens_of(17, 500))
    assert compute(manager, tokens_of(16, 100) + tokens_of(17, 500))[1] == 0
    assert compute(manager, tokens_of(17, 500))[1] == 0


def test_extra_keys_separate_texts() -> None:
    manager = manager_of(FULL)
    compute(manager, tokens_of(33), extra="salt")
    assert compute(manager, tokens_of(33))[1] == 0
    assert compute(manager, tokens_of(33), extra="other")[1] == 0
    assert compute(manager, tokens_of(33), extra="salt")[1] == 32


def test_without_prefix_caching_nothing_is_found_or_kept() -> None:
    manager = manager_of(FULL, caching=False)
    for _ in range(2):
        blocks, found = compute(manager, tokens_of(40))
        assert found == 0
        manager.release(blocks)
    assert manager.index.num_blocks == 0


def test_a_window_gives_blocks_back_and_says_so_in_its_table() -> None:
    manager = manager_of(WINDOW)
    blocks, _ = compute(manager, tokens_of(160))
    held = [block for block in blocks.tables[0] if block != NO_BLOCK]
    assert len(blocks.tables[0]) == 10
    assert len(held) <= manager.plan.blocks_held(160, 16)
    assert list(blocks.tables[0][:6]) == [NO_BLOCK] * 6
    assert manager.pool.num_free == 64 - len(held)
    manager.release(blocks)
    assert manager.pool.num_free == 64


def test_a_window_needs_only_its_end_for_a_hit() -> None:
    manager = manager_of(WINDOW, num_blocks=12)
    manager.release(compute(manager, tokens_of(160))[0])
    # Fill the pool until the oldest blocks are gone.
    other = manager.new_request()
    manager.start(other, None, 32)
    assert manager.grow(other, 0, 6 * 16)
    blocks, found = compute(manager, tokens_of(160))
    assert found == 144
    first = (144 - 32 + 1) // 16
    assert list(blocks.tables[0][:first]) == [NO_BLOCK] * first
    assert all(block != NO_BLOCK for block in blocks.tables[0][first:])
    manager.release(blocks)
    manager.release(other)
    assert manager.pool.num_free == 12


def test_a_hit_is_what_all_groups_hold() -> None:
    manager = manager_of(FULL, WINDOW)
    assert len(manager.plan.groups) == 2
    first, _ = compute(manager, tokens_of(97), chunk=97)
    lost = first.tables[1][3]
    # The window group loses the block of tokens 48 to 63: no text may end within its reach.
    manager.index.forget(lost)
    hit = manager.lookup(tokens_of(97), 96, None)
    assert hit is not None
    assert hit.num_tokens == 96
    hit = manager.lookup(tokens_of(97), 80, None)
    assert hit is not None
    # 80 tokens need 49..79 and 64 need 33..63: both touch it. 48 need 17..47.
    assert hit.num_tokens == 48
    assert hit.first_needed == (0, 1)


def test_the_full_group_must_hold_everything() -> None:
    manager = manager_of(FULL, WINDOW)
    first, _ = compute(manager, tokens_of(97))
    manager.index.forget(first.tables[0][2])
    hit = manager.lookup(tokens_of(97), 96, None)
    assert hit is not None
    assert hit.num_tokens == 32


def test_growth_that_does_not_fit_takes_nothing() -> None:
    manager = manager_of(FULL, WINDOW, num_blocks=5)
    blocks = manager.new_request()
    manager.start(blocks, None, 32)
    assert manager.grow(blocks, 0, 32)
    assert not manager.grow(blocks, 32, 48)
    assert manager.pool.num_free == 1
    assert [len(table) for table in blocks.tables] == [2, 2]


def test_starting_counts_cached_blocks_that_are_free_as_taken() -> None:
    manager = manager_of(FULL, num_blocks=4)
    manager.release(compute(manager, tokens_of(48))[0])
    hit = manager.lookup(tokens_of(64), 63, None)
    assert hit is not None
    assert hit.num_tokens == 48
    assert manager.can_start(hit, 64, 16, 0)
    assert not manager.can_start(hit, 64, 16, 1)
    assert not manager.can_start(hit, 65, 16, 0)


def test_the_end_of_a_text_is_evicted_before_its_beginning() -> None:
    manager = manager_of(FULL, num_blocks=4)
    manager.release(compute(manager, tokens_of(64))[0])
    other = manager.new_request()
    manager.start(other, None, 32)
    assert manager.grow(other, 0, 32)
    hit = manager.lookup(tokens_of(65), 64, None)
    assert hit is not None
    assert hit.num_tokens == 32


def test_evicted_texts_leave_no_trace() -> None:
    manager = manager_of(FULL, WINDOW, num_blocks=16)
    for start in range(0, 5000, 100):
        manager.release(compute(manager, tokens_of(60, start))[0])
    assert manager.index.num_blocks <= 16
    depth, level = 0, [manager.index.root]
    while level:
        level = [child for node in level for child in node.children.values()]
        depth += len(level)
    assert depth <= 16


def test_blocks_that_another_request_computed_too_are_not_kept_twice() -> None:
    manager = manager_of(FULL)
    first, second = manager.new_request(), manager.new_request()
    for blocks in (first, second):
        manager.start(blocks, None, 32)
        assert manager.grow(blocks, 0, 32)
    for blocks in (first, second):
        manager.publish(blocks, tokens_of(32), 32, None)
    assert manager.index.num_blocks == 2
    manager.release(second)
    manager.release(first)
    assert manager.pool.num_free == 64
    assert compute(manager, tokens_of(33))[1] == 32
