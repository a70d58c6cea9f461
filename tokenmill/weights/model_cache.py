"""The directory in which downloaded models lie.

Each model has a directory of its own, ``models/<slug>/``, with its files and, written last,
``tokenmill.json``: where they came from, their size and their checksum. A directory without it is a
download that has not finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tokenmill.errors import SourceError

SIDECAR = "tokenmill.json"
STAGING = ".download"
HASH_CHUNK_BYTES = 1 << 20
SPARE_BYTES = 64 << 20
"""Free space that a download leaves on the disk."""


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache.

    name: what ``resolve`` takes. source: where it came from. path: the file, or the directory.
    size_bytes: of all its files. sha256: of the one file; "" for a directory.
    created: when it was downloaded, ISO 8601, UTC.
    """

    name: str
    source: str
    path: Path
    size_bytes: int
    sha256: str
    created: str


def home() -> Path:
    """$TOKENMILL_HOME, or tokenmill/ in the user's cache directory."""
    chosen = os.environ.get("TOKENMILL_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache").expanduser().absolute() / "tokenmill"


def models_directory() -> Path:
    """Where models lie."""
    return home() / "models"


def entry_directory(name: str) -> Path:
    """The directory of the model of that name."""
    slug = re.sub(r"[^A-Za-z0-9._=-]+", "--", name).strip(".-")
    return models_directory() / (slug or "model")


def read_entry(directory: Path) -> CachedModel | None:
    """What the directory's sidecar says, or None if it has none or its files are not there."""
    try:
        record = json.loads((directory / SIDECAR).read_text("utf-8"))
        path = directory / record["file"] if record["file"] else directory
        entry = CachedModel(
            name=str(record["name"]),
            source=str(record["source"]),
            path=path,
            size_bytes=int(record["size_bytes"]),
            sha256=str(record["sha256"]),
            created=str(record["created"]),
        )
        if record["file"] and path.stat().st_size != entry.size_bytes:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return entry


def find(name: str) -> CachedModel | None:
    """The cached model of that name, or None."""
    entry = read_entry(entry_directory(name))
    return entry if entry is not None and entry.name == name else None


def record(name: str, source: str, file: str, size_bytes: int, sha256: str) -> CachedModel:
    """Marks the model's directory as complete, and returns its entry."""
    directory = entry_directory(name)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    values = {
        "name": name,
        "source": source,
        "file": file,
        "size_bytes": size_bytes,
        "sha256": sha256,
        "created": created,
    }
    write_atomically(directory / SIDECAR, json.dumps(values, indent=2).encode() + b"\n")
    return CachedModel(name, source, directory / file, size_bytes, sha256, created)


def list_models() -> list[CachedModel]:
    """All complete models in the cache, by name."""
    directory = models_directory()
    if not directory.is_dir():
        return []
    entries = (read_entry(child) for child in directory.iterdir() if child.is_dir())
    return sorted((entry for entry in entries if entry is not None), key=lambda entry: entry.name)


def remove(name: str) -> CachedModel:
    """Deletes a model, finished or not, and returns what it was.

    Raises SourceError if the cache has none of that name.
    """
    with lock(name):
        entry = find(name) or _unfinished(name)
        if entry is None:
            names = ", ".join(model.name for model in list_models()) or "nothing"
            raise SourceError(f"no model {name!r} is cached; cached: {names}")
        try:
            # The sidecar goes first, so that an interrupted removal leaves nothing that looks whole.
            (entry_directory(name) / SIDECAR).unlink(missing_ok=True)
            shutil.rmtree(entry_directory(name))
        except OSError as error:
            raise SourceError(f"cannot remove {entry.path}: {error.strerror or error}") from error
    return entry


def _unfinished(name: str) -> CachedModel | None:
    """What an interrupted download left behind, or None."""
    directory = entry_directory(name)
    if not directory.is_dir() or read_entry(directory) is not None:
        return None
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return CachedModel(name, "an unfinished download", directory, size, "", "")


@contextlib.contextmanager
def lock(name: str, *, announce: bool = False) -> Iterator[None]:
    """Lets one process at a time change the model of that name; a process that dies lets go of it.

    Raises SourceError if the cache directory cannot be written.
    """
    directory = models_directory() / ".locks"
    path = directory / f"{entry_directory(name).name}.lock"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise SourceError(
            f"cannot write to the model cache {models_directory()}: {error.strerror or error}; "
            "set TOKENMILL_HOME to a directory that you may write"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if announce:
                print(f"waiting for another process that is fetching {name} ...", file=sys.stderr)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def require_space(directory: Path, needed: int) -> None:
    """Raises SourceError unless the disk has ``needed`` bytes free, and some to spare."""
    free = shutil.disk_usage(directory).free
    if free < needed + SPARE_BYTES:
        raise SourceError(
            f"the disk of {directory} has {free / 1e6:.0f} MB free but "
            f"{(needed + SPARE_BYTES) / 1e6:.0f} MB are needed; "
            "make room there, or set TOKENMILL_HOME to a directory on another disk"
        )


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a small file so that it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(data)
    publish(temporary, path)


def publish(temporary: Path, final: Path) -> None:
    """Gives a finished file its final name, once its bytes are on the disk."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
