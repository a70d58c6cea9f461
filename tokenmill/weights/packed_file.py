"""A file of packed matrices, mapped so that kernels read straight from it.

After the header (see ``packed_directory``) matrices follow at multiples of 64 bytes, each with 64 bytes
of padding behind it, because kernels may read a little past their tiles. Of each matrix the header
holds a CRC-32 of its first and last page: enough to notice blocks that never reached the disk, without
reading all of it.
"""

from __future__ import annotations

import ctypes
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from tokenmill.errors import CheckpointError
from tokenmill.weights.mapped_file import MappedFile
from tokenmill.weights.packed_directory import prefixed, read_header

ALIGNMENT = 64
SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix in a provider's tiles.

    segments: (checkpoint format, rows) of its row segments. data: uint8, the tiles; owner: what keeps
    their memory.
    """

    segments: tuple[tuple[str, int], ...]
    in_features: int
    data: torch.Tensor
    owner: object


def write_packed(file: BinaryIO, key: str, model: str, matrices: Mapping[str, PackedMatrix]) -> None:
    """Writes all matrices. key: tells files of equal use from others. Raises OSError."""
    entries: dict[str, dict[str, Any]] = {}
    offset = 0
    for name, matrix in matrices.items():
        size = matrix.data.numel()
        entries[name] = {
            "segments": matrix.segments,
            "in_features": matrix.in_features,
            "offset": offset,
            "bytes": size,
            "sample": _sample(matrix.data),
        }
        offset = _align(offset + size + ALIGNMENT)
    header = {"key": key, "model": model, "bytes": offset, "matrices": entries}
    start = _align(file.write(prefixed(json.dumps(header).encode())))
    for name, matrix in matrices.items():
        file.seek(start + entries[name]["offset"])
        file.write(_bytes_of(matrix.data))
    file.truncate(start + offset)


def read_packed(path: Path, key: str) -> dict[str, PackedMatrix]:
    """Maps the file and checks it; the matrices are views.

    Raises CheckpointError if it is damaged, truncated, or made for another ``key``.
    """
    mapped = MappedFile(path)
    header = read_header(path, mapped.buffer.read)
    if header["key"] != key:
        raise CheckpointError(f"{path} was packed from other weights")
    start = _align(mapped.buffer.tell())
    if mapped.size != start + header["bytes"]:
        raise CheckpointError(f"{path} is truncated")
    matrices = {}
    for name, entry in header["matrices"].items():
        data = mapped.view(start + entry["offset"], start + entry["offset"] + entry["bytes"])
        if _sample(data) != entry["sample"]:
            raise CheckpointError(f"{path} is damaged at {name}")
        segments = tuple((str(kind), int(rows)) for kind, rows in entry["segments"])
        matrices[name] = PackedMatrix(segments, int(entry["in_features"]), data, mapped)
    return matrices


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _sample(data: torch.Tensor) -> int:
    last = _bytes_of(data[max(0, data.numel() - SAMPLE_BYTES) :])
    return zlib.crc32(last, zlib.crc32(_bytes_of(data[:SAMPLE_BYTES])))


def _bytes_of(data: torch.Tensor) -> memoryview:
    """The tensor's memory, without a copy; it must outlive the view."""
    return memoryview((ctypes.c_char * data.numel()).from_address(data.data_ptr())).cast("B")
