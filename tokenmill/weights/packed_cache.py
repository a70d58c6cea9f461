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
from pathlib import Path
from typing import BinaryIO

from tokenmill.errors import CheckpointError
from tokenmill.weights.model_cache import SPARE_BYTES
from tokenmill.weights.packed_directory import SUFFIX, packed_entries
from tokenmill.weights.packed_file import PackedMatrix, read_packed, write_packed

log = logging.getLogger("tokenmill.weights")

TEMPORARY = ".new"
HEAD_BYTES = 1 << 20
SAMPLES, SAMPLE_BYTES = 64, 4096
SMALLEST_BYTES = 16 << 20
"""Models of fewer packed bytes are packed anew each time, which takes hardly longer."""


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

    def read(self, model: str, key: str) -> dict[str, PackedMatrix]:
        """The matrices packed before, over the mapped file; {} if there are none that can be used."""
        path = self.path(model, key)
        if not path.exists():
            return {}
        try:
            found = read_packed(path, key)
        except CheckpointError as error:
            log.warning("packed weights are ignored and made anew: %s", error)
            return {}
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
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, final)
        except OSError as error:
            log.warning(
                "packed weights are not kept in %s: %s", self.directory, error.strerror or error
            )
            return False
        log.info("packed weights are kept in %s", final)
        return True

    def _make_room(self, size: int, replaced: Path) -> None:
        """Removes what was not used for longest, until ``size`` more bytes fit."""
        entries = [e for e in packed_entries(self.directory) if e.path != replaced]
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
