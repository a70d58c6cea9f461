"""Gives memory back to the system without giving up its addresses."""

from __future__ import annotations

import ctypes
import mmap


def give_back_pages(address: int, num_bytes: int) -> int:
    """Drop the contents of whole pages within ``num_bytes`` bytes from ``address``: they read as zeros
    and take memory again once written (madvise(2), MADV_DONTNEED). Returns the bytes dropped.

    Only for private anonymous memory that nothing reads before it is written. Where the system can't do
    it, nothing happens and 0 is returned.
    """
    advice = getattr(mmap, "MADV_DONTNEED", None)
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if advice is None or length <= 0:
        return 0
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return length if madvise(start, length, advice) == 0 else 0
