"""Slots of recurrent states: who gets one, who loses one."""

from __future__ import annotations

import pytest

from tokenmill.cache.state_pool import Move, StatePool


def pool_of(num_slots: int) -> tuple[StatePool, list[int]]:
    evicted: list[int] = []
    return StatePool(num_slots, evicted.append), evicted


def test_slots_start_as_zeros_or_as_copies() -> None:
    pool, _ = pool_of(2)
    first = pool.allocate(None)
    second = pool.allocate(first)
    assert pool.take_moves() == [Move(None, first), Move(first, second)]
    assert pool.take_moves() == []
    with pytest.raises(IndexError, match="no slot is free"):
        pool.allocate(None)


def test_snapshots_make_room_the_least_worthy_first() -> None:
    pool, evicted = pool_of(3)
    slots = [pool.allocate(None) for _ in range(3)]
    for slot, saves in zip(slots, (64, 16, 512), strict=True):
        pool.keep(slot, saves)
    assert pool.num_free == 3
    assert pool.allocate(None) == slots[1]
    assert evicted == [slots[1]]


def test_what_is_found_again_outlives_what_only_saves_more() -> None:
    pool, evicted = pool_of(3)
    old, found, other = (pool.allocate(None) for _ in range(3))
    pool.keep(old, 100)
    pool.keep(found, 80)
    pool.keep(other, 10)
    pool.allocate(None)
    assert evicted == [other]
    # Everything is now worth what was lost more, but only for those that are found.
    for _ in range(3):
        pool.touch(found)
    pool.release(pool.allocate(None))
    assert evicted == [other, found] or evicted == [other, old]


def test_a_snapshot_that_gives_its_own_slot_needs_no_copy() -> None:
    pool, _ = pool_of(1)
    slot = pool.allocate(None)
    pool.keep(slot, 16)
    pool.take_moves()
    assert pool.allocate(slot) == slot
    assert pool.take_moves() == []


def test_forgotten_snapshots_are_blank() -> None:
    pool, evicted = pool_of(2)
    slot = pool.allocate(None)
    pool.keep(slot, 16)
    pool.forget_snapshots()
    assert evicted == [slot]
    assert pool.is_blank(slot)
    assert (pool.num_free, pool.num_snapshots) == (2, 0)
