from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.cache.plan import plan_groups
from tokenmill.cache.spec import CacheSpec, FullAttentionSpec, SlidingWindowSpec


def full(heads: int = 1, dim: int = 64) -> FullAttentionSpec:
    return FullAttentionSpec(heads, dim, torch.float16)


def sliding(window: int = 512, heads: int = 1, dim: int = 64) -> SlidingWindowSpec:
    return SlidingWindowSpec(heads, dim, torch.float16, window)


def test_equal_layers_are_one_group() -> None:
    plan = plan_groups([full()] * 30)
    assert len(plan.groups) == 1
    assert plan.block_bytes == 30 * full().page_bytes
    assert [slot.layer for slot in plan.groups[0].slots] == list(range(30))
    assert plan.wasted_share == 0


def test_gemma_3_270m_gets_six_groups_of_three_layers() -> None:
    specs: list[CacheSpec] = [full() if (i + 1) % 6 == 0 else sliding() for i in range(18)]
    plan = plan_groups(specs)
    assert [len(group.slots) for group in plan.groups] == [3] * 6
    assert [group.window for group in plan.groups].count(0) == 1
    assert plan.block_bytes == 3 * full().page_bytes
    assert plan.wasted_share == 0


def test_gemma_3_1b_wastes_little_rather_than_keeping_many_tables() -> None:
    specs: list[CacheSpec] = [full() if (i + 1) % 6 == 0 else sliding() for i in range(26)]
    plan = plan_groups(specs)
    assert len(plan.groups) <= 8
    assert plan.wasted_share < 0.1


def test_pages_of_different_sizes_fit_one_block() -> None:
    plan = plan_groups([full(4, 128), sliding(heads=1, dim=64), sliding(heads=1, dim=64)])
    assert all(
        slot.offset + group.spec.page_bytes <= plan.block_bytes
        for group in plan.groups
        for slot in group.slots
    )


def test_no_layers_is_an_error() -> None:
    with pytest.raises(ValueError, match="without layers"):
        plan_groups([])


SPECS = st.builds(sliding, st.sampled_from([1, 16, 512]), st.integers(1, 4), st.sampled_from([2, 64]))


@settings(max_examples=60, deadline=None)
@given(st.lists(SPECS | st.builds(full, st.integers(1, 8), st.sampled_from([2, 64])), min_size=1))
def test_every_layer_has_its_own_room(specs: list[CacheSpec]) -> None:
    plan = plan_groups(specs)
    seen = {}
    for group in plan.groups:
        end = 0
        for slot in group.slots:
            assert specs[slot.layer] == group.spec
            assert slot.offset >= end
            assert slot.offset % 64 == 0
            end = slot.offset + group.spec.page_bytes
            seen[slot.layer] = True
        assert end <= plan.block_bytes
    assert sorted(seen) == list(range(len(specs)))


@given(st.integers(1, 600), st.integers(1, 100), st.integers(0, 2000))
def test_blocks_held_covers_every_step(window: int, chunk: int, start: int) -> None:
    """Blocks from the first that a step's first token sees to its last token's."""
    group = plan_groups([sliding(window)]).groups[0]
    end = start + chunk
    first = max(0, start - window + 1) // 16
    assert (end - 1) // 16 - first + 1 <= group.blocks_held(end, chunk)
    assert plan_groups([full()]).blocks_held(end, chunk) == -(-end // 16)
