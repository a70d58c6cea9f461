from __future__ import annotations

import pytest

from tokenmill.cache.block_pool import BlockPool


def test_blocks_are_handed_out_once() -> None:
    pool = BlockPool(4, lambda block: None)
    assert sorted(pool.allocate() for _ in range(4)) == [0, 1, 2, 3]
    assert pool.num_free == 0
    with pytest.raises(IndexError, match="no block is free"):
        pool.allocate()


def test_a_shared_block_is_free_after_its_last_release() -> None:
    pool = BlockPool(1, lambda block: None)
    block = pool.allocate()
    pool.share(block)
    pool.release(block)
    assert pool.num_free == 0
    pool.release(block)
    assert pool.num_free == 1
    with pytest.raises(ValueError, match="released more often"):
        pool.release(block)


def test_cached_blocks_are_evicted_last_and_least_recently_used_first() -> None:
    evicted: list[int] = []
    pool = BlockPool(4, evicted.append)
    a, b, c = (pool.allocate() for _ in range(3))
    for block in (a, b, c):
        pool.mark_cached(block)
    for block in (b, a, c):
        pool.release(block)
    pool.share(b)  # found again, and released last
    pool.release(b)
    assert evicted == []
    blank = pool.allocate()
    assert blank not in (a, b, c)
    assert evicted == []
    assert [pool.allocate() for _ in range(3)] == [a, c, b] == evicted
    assert not any(pool.is_cached(block) for block in (a, b, c))


def test_a_cached_block_in_use_is_never_evicted() -> None:
    evicted: list[int] = []
    pool = BlockPool(2, evicted.append)
    kept, other = pool.allocate(), pool.allocate()
    pool.mark_cached(kept)
    pool.release(other)
    assert pool.allocate() == other
    with pytest.raises(IndexError):
        pool.allocate()
    assert evicted == []


def test_forgetting_keeps_what_is_in_use() -> None:
    evicted: list[int] = []
    pool = BlockPool(3, evicted.append)
    used, cached = pool.allocate(), pool.allocate()
    for block in (used, cached):
        pool.mark_cached(block)
    pool.release(cached)
    pool.forget_cached()
    assert evicted == [cached]
    assert pool.is_cached(used)
    assert not pool.is_cached(cached)
    assert pool.num_free == 2
    pool.allocate()
    pool.allocate()
    assert evicted == [cached]
