"""A file of packed matrices, mapped so that kernels read straight from it.

Layout, little-endian: magic (8 bytes), version, length of the header and its CRC-32 (uint32 each), then
the header as JSON. Matrices follow at multiples of 64 bytes, each with 64 bytes of padding behind it,
because kernels may read a little past their tiles. Of each matrix the header holds a CRC-32 of its
first and last page: enough to notice blocks that never reached the disk, without reading all of it.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from tokenmill.errors import CheckpointError
from tokenmill.weights.mapped_file import MappedFile

MAGIC = b"TMPACKED"
VERSION = 1
PREFIX = struct.Struct("<8sIII")
ALIGNMENT = 64
SAMPLE_BYTES = 4096
MAX_HEADER_BYTES = 64 << 20


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


@dataclass(frozen=True)
class PackedFile:
    """What a file holds. model: where the weights came from."""

    model: str
    matrices: Mapping[str, PackedMatrix]


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _sample(data: torch.Tensor) -> int:
    last = _bytes_of(data[max(0, data.numel() - SAMPLE_BYTES) :])
    return zlib.crc32(last, zlib.crc32(_bytes_of(data[:SAMPLE_BYTES])))


def _bytes_of(data: torch.Tensor) -> memoryview:
    """The tensor's memory, without a copy; it must outlive the view."""
    return memoryview((ctypes.c_char * data.numel()).from_address(data.data_ptr())).cast("B")


def write_packed(file: BinaryIO, key: str, model: str, matrices: Mapping[str, PackedMatrix]) -> None:
    """Writes all matrices. Raises OSError."""
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
    header = json.dumps({"key": key, "model": model, "bytes": offset, "matrices": entries}).encode()
    file.write(PREFIX.pack(MAGIC, VERSION, len(header), zlib.crc32(header)))
    file.write(header)
    start = _align(PREFIX.size + len(header))
    for name, matrix in matrices.items():
        file.seek(start + entries[name]["offset"])
        file.write(_bytes_of(matrix.data))
    file.truncate(start + offset)


def read_model(path: Path) -> str:
    """Where the weights of a packed file came from. Raises CheckpointError or OSError."""
    with path.open("rb") as file:
        header, _ = _header(path, file.read(PREFIX.size), file.read)
    return str(header["model"])


def read_packed(path: Path, key: str) -> PackedFile:
    """Maps the file and checks it; its matrices are views.

    Raises CheckpointError if it is damaged, truncated, or made for another ``key``.
    """
    mapped = MappedFile(path)
    position = 0

    def read(count: int) -> bytes:
        nonlocal position
        piece = mapped.buffer[position : position + count]
        position += count
        return piece

    header, start = _header(path, read(PREFIX.size), read)
    if header.get("key") != key:
        raise CheckpointError(f"{path} was packed from other weights")
    try:
        if mapped.size != start + header["bytes"]:
            raise CheckpointError(f"{path} is truncated")
        matrices = {}
        for name, entry in header["matrices"].items():
            data = mapped.view(start + entry["offset"], start + entry["offset"] + entry["bytes"])
            if _sample(data) != entry["sample"]:
                raise CheckpointError(f"{path} is damaged at {name}")
            segments = tuple((str(format_name), int(rows)) for format_name, rows in entry["segments"])
            matrices[name] = PackedMatrix(segments, int(entry["in_features"]), data, mapped)
        return PackedFile(str(header["model"]), matrices)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged ({error})") from error


def _header(path: Path, prefix: bytes, read: Any) -> tuple[dict[str, Any], int]:
    """The header, and where the matrices start."""
    if len(prefix) != PREFIX.size:
        raise CheckpointError(f"{path} is truncated")
    magic, version, length, checksum = PREFIX.unpack(prefix)
    if magic != MAGIC or version != VERSION or length > MAX_HEADER_BYTES:
        raise CheckpointError(f"{path} is no file of packed weights of this version")
    text = read(length)
    if zlib.crc32(text) != checksum:
        raise CheckpointError(f"{path} has a damaged header")
    header = json.loads(text)
    if not isinstance(header, dict) or "model" not in header:
        raise CheckpointError(f"{path} has a damaged header")
    return header, _align(PREFIX.size + length)


def flush(file: BinaryIO) -> None:
    """Waits until the file's bytes are on the disk."""
    file.flush()
    os.fsync(file.fileno())
