"""Buffers are shared by name and never move."""

from __future__ import annotations

from tokenmill.layers.scratch import Scratch


def test_the_same_name_and_width_is_the_same_memory() -> None:
    scratch = Scratch(8)
    first = scratch.get("qkv", 12)
    assert first.shape == (8, 12)
    assert scratch.get("qkv", 12).data_ptr() == first.data_ptr()
    assert not first.any()


def test_another_name_width_or_height_is_other_memory() -> None:
    scratch = Scratch(8)
    buffers = [
        scratch.get("qkv", 12),
        scratch.get("out", 12),
        scratch.get("qkv", 10),
        scratch.get("qkv", 12, rows=3),
    ]
    assert len({buffer.data_ptr() for buffer in buffers}) == 4
    assert scratch.nbytes == 4 * 8 * (12 + 12 + 10) + 4 * 3 * 12
