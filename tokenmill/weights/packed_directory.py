"""The files of packed weights: where they lie, whose they are, and the header that says so.

A file begins with magic (8 bytes), version, length of the header and its CRC-32 (uint32 each,
little-endian), then the header as JSON. What follows is the business of ``packed_file``; this module
needs no torch.
"""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.weights.model_cache import home

SUFFIX = ".packed"
MAGIC = b"TMPACKED"
VERSION = 1
PREFIX = struct.Struct("<8sIII")
MAX_HEADER_BYTES = 64 << 20


@dataclass(frozen=True)
class PackedEntry:
    """A file of packed weights.

    model: the file or directory that its weights came from, "" if it can't be read. used: when it was
    last used, seconds.
    """

    path: Path
    model: str
    size_bytes: int
    used: float


def packed_directory() -> Path:
    """Where packed weights lie."""
    return home() / "packed"


def packed_entries(directory: Path) -> list[PackedEntry]:
    """What the directory holds, least recently used first."""
    found = []
    for path in directory.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):  # another process may be removing it
            status = path.stat()
            try:
                with path.open("rb") as file:
                    model = str(read_header(path, file.read)["model"])
            except CheckpointError:
                model = ""
            found.append(PackedEntry(path, model, status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: entry.used)


def remove_packed(directory: Path, model: Path) -> int:
    """Removes what was packed from files at or below ``model``; returns how many files that were."""
    removed = 0
    for entry in packed_entries(directory):
        if entry.model and Path(entry.model).is_relative_to(model):
            with contextlib.suppress(OSError):
                entry.path.unlink()
                removed += 1
    return removed


def prefixed(header: bytes) -> bytes:
    """What a file begins with."""
    return PREFIX.pack(MAGIC, VERSION, len(header), zlib.crc32(header)) + header


def read_header(path: Path, read: Callable[[int], bytes]) -> dict[str, Any]:
    """The header of a file that ``read`` reads from its start. Raises CheckpointError if damaged."""
    prefix = read(PREFIX.size)
    if len(prefix) != PREFIX.size:
        raise CheckpointError(f"{path} is truncated")
    magic, version, length, checksum = PREFIX.unpack(prefix)
    if magic != MAGIC or version != VERSION or length > MAX_HEADER_BYTES:
        raise CheckpointError(f"{path} is no file of packed weights of this version")
    text = read(length)
    if zlib.crc32(text) != checksum:
        raise CheckpointError(f"{path} has a damaged header")
    header: dict[str, Any] = json.loads(text)
    return header
