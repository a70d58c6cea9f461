"""Quantising while loading: unquantised matrices become GGML blocks.

The result has the very bytes that a GGUF file would hold, so it takes the same way through packing and
kernels as a quantised checkpoint. Block formats (all little-endian, 32 weights each):

- Q8_0: fp16 scale d, 32 x int8 q; w = d q.
- Q4_1: fp16 scale d, fp16 minimum m, 16 bytes; byte i holds q of weight i in its low half and of weight
  i + 16 in its high half; w = d q + m.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.config import Quantization
from tokenmill.errors import CheckpointError
from tokenmill.weights.ggml_formats import dequantize
from tokenmill.weights.tensor import RawTensor

BLOCK = 32
ROWS_BYTES = 1 << 25
"""Rows are quantised in slices of about this many fp32 bytes, so temporaries stay small."""

SHRINKS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8)
"""Shares of a block's range that are tried at 4 bits; clipping its extremes can lower the error."""


def quantisable(raw: RawTensor) -> bool:
    """True for an unquantised matrix whose rows are whole blocks."""
    return raw.format in ("F32", "F16", "BF16") and len(raw.shape) == 2 and raw.shape[1] % BLOCK == 0


def quantise(raw: RawTensor, kind: Quantization) -> RawTensor:
    """The matrix in Q8_0 (int8) or Q4_1 (int4) blocks.

    Raises CheckpointError if it holds a value that is not finite.
    """
    encode = quantise_q8_0 if kind == "int8" else quantise_q4_1
    rows = max(1, ROWS_BYTES // (4 * raw.shape[1]))
    parts: list[Tensor] = []
    for start in range(0, raw.shape[0], rows):
        part = raw.rows(start, min(start + rows, raw.shape[0]))
        values = dequantize(part).reshape(-1, BLOCK)
        if not bool(torch.isfinite(values).all()):
            raise CheckpointError(
                f"{raw.name} holds values that are not finite and cannot be quantised; "
                "load the model without --quantization, or repair the file"
            )
        parts.append(encode(values).flatten())
    return RawTensor(raw.name, "Q8_0" if kind == "int8" else "Q4_1", raw.shape, torch.cat(parts))


def quantise_q8_0(blocks: Tensor) -> Tensor:
    """fp32 [n, 32] as Q8_0, uint8 [n, 34]; the error of a weight is at most half its block's scale."""
    scale = _half(blocks.abs().amax(dim=1, keepdim=True) / 127)
    q = _divide(blocks, scale.float()).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([scale.view(torch.uint8), q.view(torch.uint8)], dim=1)


def quantise_q4_1(blocks: Tensor) -> Tensor:
    """fp32 [n, 32] as Q4_1, uint8 [n, 20]; of several ranges the one with the least squared error."""
    low, high = blocks.aminmax(dim=1, keepdim=True)
    centre, reach = (low + high) / 2, (high - low) / 2
    best = torch.full_like(low, float("inf"))
    best_scale, best_minimum = _half(torch.zeros_like(low)), _half(low)
    best_q = torch.zeros_like(blocks)
    for shrink in SHRINKS:
        scale = _half(2 * reach * shrink / 15)
        minimum = _half(centre - reach * shrink)
        q = _divide(blocks - minimum.float(), scale.float()).round().clamp(0, 15)
        error = (q * scale.float() + minimum.float() - blocks).square().sum(dim=1, keepdim=True)
        better = error < best
        best = torch.where(better, error, best)
        best_scale = torch.where(better, scale, best_scale)
        best_minimum = torch.where(better, minimum, best_minimum)
        best_q = torch.where(better, q, best_q)
    nibbles = best_q.to(torch.uint8)
    packed = nibbles[:, :16] | (nibbles[:, 16:] << 4)
    return torch.cat([best_scale.view(torch.uint8), best_minimum.view(torch.uint8), packed], dim=1)


def _half(x: Tensor) -> Tensor:
    """fp16, saturating: an infinite scale would make every weight of a block infinite or NaN."""
    return x.clamp(-65504, 65504).to(torch.float16)


def _divide(x: Tensor, scale: Tensor) -> Tensor:
    return torch.where(scale > 0, x / scale.clamp_min(1e-30), 0.0)
