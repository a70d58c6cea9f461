from __future__ import annotations

import mmap

import torch

from tokenmill.cache.pages import give_back_pages

PAGE = mmap.PAGESIZE


def test_whole_pages_are_dropped_and_nothing_beside_them() -> None:
    memory = torch.full((64 * PAGE,), 7, dtype=torch.uint8)
    start = -memory.data_ptr() % PAGE
    # From the middle of a page to the middle of another, with 10 whole ones between.
    first, length = start + PAGE // 2, 11 * PAGE
    assert give_back_pages(memory.data_ptr() + first, length) == 10 * PAGE
    assert memory[: start + PAGE].eq(7).all()
    assert memory[start + PAGE : start + 11 * PAGE].eq(0).all()
    assert memory[start + 11 * PAGE :].eq(7).all()
    memory.fill_(3)
    assert memory.eq(3).all()


def test_less_than_a_page_stays() -> None:
    memory = torch.full((4 * PAGE,), 7, dtype=torch.uint8)
    assert give_back_pages(memory.data_ptr(), PAGE - 1) == 0
    assert give_back_pages(memory.data_ptr(), 0) == 0
    assert memory.eq(7).all()


def test_what_is_no_memory_is_left_alone() -> None:
    assert give_back_pages(1 << 60, 4 * PAGE) == 0
