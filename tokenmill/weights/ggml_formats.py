"""The GGML block formats: how many bytes hold how many weights, and what the bytes mean.

A row is a sequence of blocks of equal size; a block never crosses a row's end. The layouts are those of
ggml (``ggml-common.h`` and ``dequantize_row_*`` in ``ggml-quants.c``); products and sums are rounded to
fp32 one at a time, in the order written there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tokenmill.errors import CheckpointError
from tokenmill.weights.tensor import RawTensor

CHUNK_ELEMENTS = 1 << 20
"""Elements decoded at a time, so that temporaries stay at a few megabytes."""

IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The sixteen levels of the non-linear 4-bit formats (``kvalues_iq4nl`` in ggml)."""


@dataclass(frozen=True)
class BlockFormat:
    """``block_bytes`` bytes hold ``block_size`` elements. type_id: its number in GGUF files."""

    name: str
    type_id: int
    block_size: int
    block_bytes: int


FORMATS: dict[str, BlockFormat] = {
    f.name: f
    for f in (
        BlockFormat("F32", 0, 1, 4),
        BlockFormat("F16", 1, 1, 2),
        BlockFormat("Q4_0", 2, 32, 18),
        BlockFormat("Q4_1", 3, 32, 20),
        BlockFormat("Q5_0", 6, 32, 22),
        BlockFormat("Q5_1", 7, 32, 24),
        BlockFormat("Q8_0", 8, 32, 34),
        BlockFormat("Q2_K", 10, 256, 84),
        BlockFormat("Q3_K", 11, 256, 110),
        BlockFormat("Q4_K", 12, 256, 144),
        BlockFormat("Q5_K", 13, 256, 176),
        BlockFormat("Q6_K", 14, 256, 210),
        BlockFormat("IQ4_NL", 20, 32, 18),
        BlockFormat("IQ4_XS", 23, 256, 136),
        BlockFormat("I8", 24, 1, 1),
        BlockFormat("I16", 25, 1, 2),
        BlockFormat("I32", 26, 1, 4),
        BlockFormat("I64", 27, 1, 8),
        BlockFormat("F64", 28, 1, 8),
        BlockFormat("BF16", 30, 1, 2),
    )
}
"""The formats that are read, by name."""

FORMATS_BY_ID: dict[int, BlockFormat] = {f.type_id: f for f in FORMATS.values()}

UNREAD_FORMATS: dict[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}
"""Formats that exist but are not read, so that an error can name them."""

PLAIN_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
"""Formats that are arrays of a torch type."""


def byte_size(format: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of the given format and row-major shape.

    Raises CheckpointError for a format that is not read, or a row that is not a whole number of blocks.
    """
    block = FORMATS.get(format)
    if block is None:
        raise CheckpointError(
            f"weights of format {format} are not supported; supported: {', '.join(FORMATS)}"
        )
    width = shape[-1] if shape else 1
    if width % block.block_size:
        raise CheckpointError(
            f"rows of {width} elements are not a whole number of {format} blocks of {block.block_size}"
        )
    rows = 1
    for extent in shape[:-1]:
        rows *= extent
    return rows * (width // block.block_size) * block.block_bytes


def plain(raw: RawTensor) -> torch.Tensor:
    """A tensor of an unquantised format in its own type: a view of the file where alignment allows.

    Raises CheckpointError if the format is quantised or the bytes do not fill the shape.
    """
    dtype = PLAIN_DTYPES.get(raw.format)
    if dtype is None:
        raise CheckpointError(f"tensor {raw.name} is {raw.format}, which is not a plain number format")
    _check_size(raw)
    data = raw.data
    if data.data_ptr() % dtype.itemsize or data.storage_offset() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype).reshape(raw.shape)


def dequantize(raw: RawTensor) -> torch.Tensor:
    """The tensor's values as new fp32 memory of ``raw.shape``.

    Raises CheckpointError for formats without a decoder, and for bytes that do not fill the shape.
    """
    if raw.format in PLAIN_DTYPES:
        return plain(raw).to(torch.float32, copy=True)
    decode = DECODERS.get(raw.format)
    if decode is None:
        raise CheckpointError(
            f"tensor {raw.name} has format {raw.format}, which is not supported; "
            f"supported: {', '.join(FORMATS)}"
        )
    _check_size(raw)
    block = FORMATS[raw.format]
    blocks = raw.data.view(-1, block.block_bytes)
    out = torch.empty(raw.shape, dtype=torch.float32)
    flat = out.view(-1, block.block_size)
    step = CHUNK_ELEMENTS // block.block_size
    for start in range(0, blocks.shape[0], step):
        part = blocks[start : start + step]
        flat[start : start + step] = decode(part).view(-1, block.block_size)
    return out


def _check_size(raw: RawTensor) -> None:
    expected = byte_size(raw.format, raw.shape)
    if raw.data.numel() != expected:
        raise CheckpointError(
            f"tensor {raw.name} of format {raw.format} and shape {list(raw.shape)} needs "
            f"{expected} bytes but has {raw.data.numel()}; the file is damaged"
        )


# Decoders: blocks uint8 [n, block_bytes] -> fp32, n * block_size elements in order.


def _halves(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The fp16 number at byte ``at`` of each block, as fp32 [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).to(torch.float32)


def _nibbles(packed: torch.Tensor, group: int) -> torch.Tensor:
    """Low nibbles of each ``group`` bytes, then their high nibbles: uint8 [n, 2 * bytes]."""
    grouped = packed.reshape(packed.shape[0], -1, 1, group)
    return torch.cat((grouped & 15, grouped >> 4), dim=2).flatten(1)


def _bit_pairs(packed: torch.Tensor) -> torch.Tensor:
    """Of each 32 bytes, the lowest two bits, then the next two, and so on: uint8 [n, 4 * bytes]."""
    grouped = packed.reshape(packed.shape[0], -1, 1, 32)
    return torch.cat([(grouped >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2).flatten(1)


def _bit_planes(packed: torch.Tensor) -> torch.Tensor:
    """Of 32 bytes, bit 0 of each, then bit 1 of each, and so on: uint8 [n, 256]."""
    return torch.cat([(packed >> shift) & 1 for shift in range(8)], dim=1)


def _bits_in_order(packed: torch.Tensor) -> torch.Tensor:
    """The bits of each byte from the lowest up, byte after byte: uint8 [n, 8 * bytes]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((packed.unsqueeze(-1) >> shifts) & 1).flatten(1)


def _q4_0(b: torch.Tensor) -> torch.Tensor:
    q = _nibbles(b[:, 2:18], 16).to(torch.float32) - 8
    return _halves(b, 0) * q


def _q4_1(b: torch.Tensor) -> torch.Tensor:
    q = _nibbles(b[:, 4:20], 16).to(torch.float32)
    return _halves(b, 0) * q + _halves(b, 2)


def _q5_0(b: torch.Tensor) -> torch.Tensor:
    q = _nibbles(b[:, 6:22], 16) | (_bits_in_order(b[:, 2:6]) << 4)
    return _halves(b, 0) * (q.to(torch.float32) - 16)


def _q5_1(b: torch.Tensor) -> torch.Tensor:
    q = _nibbles(b[:, 8:24], 16) | (_bits_in_order(b[:, 4:8]) << 4)
    return _halves(b, 0) * q.to(torch.float32) + _halves(b, 2)


def _q8_0(b: torch.Tensor) -> torch.Tensor:
    return b[:, 2:34].view(torch.int8).to(torch.float32) * _halves(b, 0)


def _q2_k(b: torch.Tensor) -> torch.Tensor:
    scales = b[:, 0:16]
    d = _halves(b, 80) * (scales & 15).to(torch.float32)
    m = _halves(b, 82) * (scales >> 4).to(torch.float32)
    q = _bit_pairs(b[:, 16:80]).view(-1, 16, 16).to(torch.float32)
    return d.unsqueeze(-1) * q - m.unsqueeze(-1)


def _q3_k(b: torch.Tensor) -> torch.Tensor:
    packed = b[:, 96:108]
    low = torch.cat((packed[:, 0:8] & 15, packed[:, 0:8] >> 4), dim=1)
    high = torch.cat([(packed[:, 8:12] >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1)
    scales = (low | (high << 4)).to(torch.float32) - 32
    d = _halves(b, 108) * scales
    # A cleared bit of the mask subtracts 4.
    q = _bit_pairs(b[:, 32:96]).to(torch.float32) - ((_bit_planes(b[:, 0:32]) ^ 1) << 2).to(
        torch.float32
    )
    return d.unsqueeze(-1) * q.view(-1, 16, 16)


def _k_scales(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The eight 6-bit scales and minimums of Q4_K and Q5_K, out of 12 bytes: fp32 [n, 8] each."""
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((a & 63, (c & 15) | ((a >> 2) & 48)), dim=1)
    minimums = torch.cat((b & 63, (c >> 4) | ((b >> 2) & 48)), dim=1)
    return scales.to(torch.float32), minimums.to(torch.float32)


def _k_affine(b: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Scale and minimum of Q4_K and Q5_K applied to q, uint8 [n, 256]."""
    scales, minimums = _k_scales(b[:, 4:16])
    d = (_halves(b, 0) * scales).unsqueeze(-1)
    m = (_halves(b, 2) * minimums).unsqueeze(-1)
    return d * q.view(-1, 8, 32).to(torch.float32) - m


def _q4_k(b: torch.Tensor) -> torch.Tensor:
    return _k_affine(b, _nibbles(b[:, 16:144], 32))


def _q5_k(b: torch.Tensor) -> torch.Tensor:
    return _k_affine(b, _nibbles(b[:, 48:176], 32) | (_bit_planes(b[:, 16:48]) << 4))


def _q6_k(b: torch.Tensor) -> torch.Tensor:
    q = _nibbles(b[:, 0:128], 64) | (_bit_pairs(b[:, 128:192]) << 4)
    d = _halves(b, 208) * b[:, 192:208].view(torch.int8).to(torch.float32)
    return d.unsqueeze(-1) * (q.to(torch.float32) - 32).view(-1, 16, 16)


def _iq4_levels(nibbles: torch.Tensor) -> torch.Tensor:
    return torch.tensor(IQ4_LEVELS, dtype=torch.float32)[nibbles.to(torch.int32)]


def _iq4_nl(b: torch.Tensor) -> torch.Tensor:
    return _halves(b, 0) * _iq4_levels(_nibbles(b[:, 2:18], 16))


def _iq4_xs(b: torch.Tensor) -> torch.Tensor:
    shifts = torch.tensor((0, 2, 4, 6), dtype=torch.uint8)
    high = ((b[:, 2:4].unsqueeze(-1) >> shifts) & 3).flatten(1)
    low = torch.stack((b[:, 4:8] & 15, b[:, 4:8] >> 4), dim=-1).flatten(1)
    d = _halves(b, 0) * ((low | (high << 4)).to(torch.float32) - 32)
    return d.unsqueeze(-1) * _iq4_levels(_nibbles(b[:, 8:136], 16)).view(-1, 8, 32)


DECODERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
"""How each quantised format is decoded."""
