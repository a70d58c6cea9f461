"""A file mapped into memory, so that tensors can be views of it."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from pathlib import Path

import torch

from tokenmill.errors import CheckpointError

# Python names this flag only from 3.13 on. The number is that of Linux on every common processor.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class MappedFile:
    """A whole file, mapped privately: nothing is read before it is touched, nothing is written back.

    The mapping lives as long as anything that views it; ``close`` only drops this object's hold.

    Raises CheckpointError if the file is missing, unreadable, empty or not a regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # O_NONBLOCK: a named pipe must give an error, not wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise CheckpointError(f"{path} is not a regular file")
                if status.st_size == 0:
                    raise CheckpointError(f"{path} is empty; download it again")
                self.size = status.st_size
                # A private, writable mapping rather than a read-only one, because torch
                # has no read-only tensors; pages are copied only if something writes to them. No
                # memory is set aside for that, or a file larger than the memory could not be mapped.
                self.buffer = mmap.mmap(
                    descriptor,
                    self.size,
                    flags=mmap.MAP_PRIVATE | _NO_RESERVE,
                    prot=mmap.PROT_READ | mmap.PROT_WRITE,
                )
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise CheckpointError(f"cannot open {path}: {reason}") from error
        self._bytes: torch.Tensor | None = None

    def view(self, start: int, stop: int) -> torch.Tensor:
        """Bytes start to stop as a uint8 tensor that shares the mapping's memory."""
        if not 0 <= start <= stop <= self.size:
            raise CheckpointError(
                f"{self.path}: bytes {start} to {stop} lie outside the file; download it again"
            )
        if self._bytes is None:
            self._bytes = torch.frombuffer(self.buffer, dtype=torch.uint8)
        return self._bytes[start:stop]

    def drop_pages(self) -> None:
        """Lets the system take back the memory of what was read; what is needed is read again."""
        # Nothing ever writes to the mapping, so no private page can be lost.
        if self._bytes is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.buffer.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Gives the mapping up; it goes away with the last tensor that views it."""
        if self._bytes is None:
            self.buffer.close()
        self._bytes = None
