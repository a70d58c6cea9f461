"""Cheap writes of Python integers into int32 tensors."""

from __future__ import annotations

import ctypes

import torch


def int_view(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous int32 tensor as a flat view of integers.

    Assigning an ``array('i')`` to a slice is one copy, without the microseconds that a torch call
    takes. The view doesn't keep the tensor alive: whoever holds it must hold the tensor too.
    """
    if tensor.dtype != torch.int32 or not tensor.is_contiguous():
        raise ValueError("only contiguous int32 tensors can be viewed")
    memory = (ctypes.c_int32 * tensor.numel()).from_address(tensor.data_ptr())
    return memoryview(memory).cast("B").cast("i")
