"""Packed weights on disk, so that the next start maps them instead of packing again.

``packed/<model>-<digest>.packed`` in tokenmill's home. The digest stands for the model's files (sizes,
times of change, a checksum over samples of their content), for the layout that kernels read, and for
what was asked of the load. A file is written under a temporary name that its writer keeps locked,
flushed, and renamed: whoever reads sees a whole file or none, two writers replace each other's equal
files, and what a killed writer left is recognised by its free lock. The disk is a help, never a need:
whatever fails is one line in the log.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tokenmill.errors import CheckpointError
from tokenmill.weights.model_cache import SPARE_BYTES, home
from tokenmill.weights.packed_file import (
    PackedFile,
    PackedMatrix,
    flush,
    read_model,
    read_packed,
    write_packed,
)

log = logging.getLogger("tokenmill.weights")

SUFFIX = ".packed"
TEMPORARY = ".new"
HEAD_BYTES = 1 << 20
SAMPLES, SAMPLE_BYTES = 64, 4096
SMALLEST_BYTES = 16 << 20
"""Models of fewer packed bytes are packed anew each time, which takes hardly longer."""


@dataclass(frozen=True)
class PackedEntry:
    """A file of the cache. model: where its weights came from; used: time of last use, seconds."""

    path: Path
    model: str
    size_bytes: int
    used: float


def packed_directory() -> Path:
    """Where packed weights lie."""
    return home() / "packed"


def files_identity(files: Sequence[Path]) -> str:
    """What tells these files from others: a digest of sizes, times of change and some content.

    The first megabyte (the header of most files) and 64 pages spread over the rest are read.
    Raises OSError.
    """
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            digest.update(json.dumps([path.name, status.st_size, status.st_mtime_ns]).encode())
            digest.update(file.read(HEAD_BYTES))
            step = max(SAMPLE_BYTES, (status.st_size - HEAD_BYTES) // SAMPLES)
            for start in range(HEAD_BYTES, status.st_size, step):
                digest.update(os.pread(file.fileno(), SAMPLE_BYTES, start))
    return digest.hexdigest()


class PackedCache:
    """The packed weights in ``directory``, at most ``limit_bytes`` of them.

    smallest_bytes: models of fewer packed bytes are not kept.
    """

    def __init__(self, directory: Path, limit_bytes: int, smallest_bytes: int = SMALLEST_BYTES) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self.smallest_bytes = smallest_bytes

    def path(self, model: str, key: str) -> Path:
        """Where the packed weights of this model and key are."""
        stem = re.sub(r"[^A-Za-z0-9._=-]+", "-", Path(model).stem).strip(".-") or "model"
        return self.directory / f"{stem[:60]}-{hashlib.sha256(key.encode()).hexdigest()[:20]}{SUFFIX}"

    def read(self, model: str, key: str) -> PackedFile | None:
        """The weights packed before, mapped; None if there are none that can be used."""
        path = self.path(model, key)
        if not path.exists():
            return None
        try:
            found = read_packed(path, key)
        except (CheckpointError, ValueError) as error:
            log.warning("packed weights are ignored and made anew: %s", error)
            return None
        with contextlib.suppress(OSError):  # a cache that can't be written can still be read
            os.utime(path)
        return found

    def write(self, model: str, key: str, matrices: Mapping[str, PackedMatrix]) -> bool:
        """Keeps packed weights for the next start; False if they weren't, for a logged reason."""
        size = sum(matrix.data.numel() for matrix in matrices.values())
        if size < self.smallest_bytes:
            return False
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            final = self.path(model, key)
            if size > self.limit_bytes:
                log.warning(
                    "packed weights are not kept: they have %d MB, and the cache may hold %d MB",
                    size // 10**6,
                    self.limit_bytes // 10**6,
                )
                return False
            self._make_room(size, final)
            if shutil.disk_usage(self.directory).free < size + SPARE_BYTES:
                log.warning("packed weights are not kept: the disk of %s is full", self.directory)
                return False
            with self._temporary() as (temporary, file):
                write_packed(file, key, model, matrices)
                flush(file)
                os.replace(temporary, final)
        except OSError as error:
            log.warning(
                "packed weights are not kept in %s: %s", self.directory, error.strerror or error
            )
            return False
        log.info("packed weights are kept in %s", final)
        return True

    def entries(self) -> list[PackedEntry]:
        """What the cache holds, least recently used first."""
        found = []
        if self.directory.is_dir():
            for path in self.directory.glob(f"*{SUFFIX}"):
                with contextlib.suppress(OSError):  # another process may be removing it
                    status = path.stat()
                    try:
                        model = read_model(path)
                    except (CheckpointError, ValueError):
                        model = ""
                    found.append(PackedEntry(path, model, status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: entry.used)

    def remove(self, model: Path) -> int:
        """Removes what was packed from files at or below ``model``; returns how many it removed."""
        removed = 0
        for entry in self.entries():
            if entry.model and Path(entry.model).is_relative_to(model):
                with contextlib.suppress(OSError):
                    entry.path.unlink()
                    removed += 1
        return removed

    def _make_room(self, size: int, replaced: Path) -> None:
        """Removes what was not used for longest, until ``size`` more bytes fit."""
        entries = [entry for entry in self.entries() if entry.path != replaced]
        total = sum(entry.size_bytes for entry in entries)
        for entry in entries:
            if total + size <= self.limit_bytes:
                break
            entry.path.unlink(missing_ok=True)  # whoever has it mapped keeps it
            total -= entry.size_bytes
            log.info("removed packed weights that were not used for longest: %s", entry.path.name)

    def _remove_leftovers(self) -> None:
        """Temporary files whose writers are gone."""
        for path in self.directory.glob(f"*{TEMPORARY}"):
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[tuple[Path, BinaryIO]]:
        """A new locked file, which is removed unless it was renamed."""
        descriptor, name = tempfile.mkstemp(suffix=TEMPORARY, dir=self.directory)
        path = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield path, file
        finally:
            path.unlink(missing_ok=True)
