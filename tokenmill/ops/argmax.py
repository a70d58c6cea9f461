"""The largest element of each row, as fast as memory can be read."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def _native() -> Any:
    """The native module, or None where it is not built."""
    try:
        return importlib.import_module("tokenmill._native")
    except ImportError:
        return None


def argmax(logits: Tensor) -> Tensor:
    """int64 [rows]: for each row of ``logits``, fp32 [rows, vocab], the first index of its maximum.

    torch compares one element at a time, or wakes a team of threads for a row that one reads in
    microseconds. NaN is never the maximum, and where nothing else is, 0 is returned.
    """
    native = _native()
    if native is None:
        return torch.where(logits.isnan(), float("-inf"), logits).argmax(dim=1)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    out = torch.empty(logits.shape[0], dtype=torch.int64)
    native.argmax(logits.data_ptr(), *logits.shape, logits.stride(0), out.data_ptr())
    return out
