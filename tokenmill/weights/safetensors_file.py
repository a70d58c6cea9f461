"""Reads safetensors files, alone or in shards.

Written after the format description in the safetensors repository: eight bytes of header length, a JSON
header, and the tensors' bytes without gaps. A file is taken to be hostile: the header is checked whole
against the file's size before any tensor is handed out.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.weights.ggml_formats import byte_size
from tokenmill.weights.mapped_file import MappedFile
from tokenmill.weights.tensor import RawTensor

MAX_HEADER_BYTES = 32 << 20
MAX_JSON_BYTES = 32 << 20
"""Far above what any model has. They bound the memory that a hostile file can ask for."""

MAX_DIMENSIONS = 8
MAX_NAME_CHARACTERS = 1024
MAX_ELEMENTS = (1 << 63) - 1
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

DTYPES: dict[str, str] = {
    "F64": "F64",
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
    "I64": "I64",
    "I32": "I32",
    "I16": "I16",
    "I8": "I8",
}
"""Type names of the format -> RawTensor formats."""


@dataclass(frozen=True)
class _Entry:
    format: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_json_object(path: Path, text: bytes) -> dict[str, Any]:
    """The JSON object in ``text``. Raises CheckpointError naming ``path`` for anything else."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key occurs twice")
        return result

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: the JSON is not an object; download it again")
    return value


def read_json_file(path: Path) -> dict[str, Any]:
    """The JSON object in a small file. Raises CheckpointError if it is absent, huge or malformed."""
    file = MappedFile(path)
    try:
        if file.size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path} has {file.size} bytes, too many for a configuration file")
        return read_json_object(path, file.buffer[:])
    finally:
        file.close()


class SafetensorsFile:
    """One safetensors file. Raises CheckpointError for anything that is not whole and well-formed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            self._entries = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def names(self) -> Collection[str]:
        """The tensors' names."""
        return self._entries.keys()

    def get(self, name: str) -> RawTensor:
        """A view of one tensor. Raises CheckpointError if there is none of that name."""
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(f"{self.path} has no tensor {name}")
        return RawTensor(name, entry.format, entry.shape, self._file.view(entry.start, entry.stop))

    def close(self) -> None:
        """Gives the mapping up; tensors that were handed out stay valid."""
        self._file.close()

    def drop_pages(self) -> None:
        """Lets the system take back the memory of what was read; views stay valid."""
        self._file.drop_pages()

    def _error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {problem}")

    def _read_header(self) -> dict[str, _Entry]:
        size = self._file.size
        if size < 8:
            raise self._error("too short for a safetensors file; download it again")
        length = int.from_bytes(self._file.buffer[:8], "little")
        if length > MAX_HEADER_BYTES:
            raise self._error(f"not a safetensors file (its header would have {length} bytes)")
        if length > size - 8:
            raise self._error("the file ends within its header; download it again")
        header = read_json_object(self.path, self._file.buffer[8 : 8 + length])
        header.pop("__metadata__", None)
        base = 8 + length
        entries = {name: self._entry(name, value, base) for name, value in header.items()}
        at = base
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
            if entry.start != at:
                problem = "overlaps the one before" if entry.start < at else "leaves a gap before it"
                raise self._error(f"tensor {name!r} {problem}; the file is damaged")
            at = entry.stop
        if at != size:
            problem = "truncated" if at > size else "longer than its header says"
            raise self._error(
                f"the file is {problem} ({size} bytes instead of {at}); download it again"
            )
        return entries

    def _entry(self, name: str, value: Any, base: int) -> _Entry:
        if len(name) > MAX_NAME_CHARACTERS:
            raise self._error(f"a tensor's name has {len(name)} characters; the file is damaged")
        if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
            raise self._error(
                f"tensor {name!r} needs exactly dtype, shape and data_offsets; the file is damaged"
            )
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        format = DTYPES.get(dtype) if isinstance(dtype, str) else None
        if format is None:
            raise self._error(
                f"tensor {name!r} has type {reprlib.repr(dtype)}, "
                f"which is not supported ({', '.join(DTYPES)} are)"
            )
        if not _naturals(shape) or len(shape) > MAX_DIMENSIONS or math.prod(shape) > MAX_ELEMENTS:
            raise self._error(f"tensor {name!r} has an impossible shape; the file is damaged")
        if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self._error(f"tensor {name!r} has impossible data_offsets; the file is damaged")
        needed = byte_size(format, tuple(shape))
        if offsets[1] - offsets[0] != needed:
            raise self._error(
                f"tensor {name!r} needs {needed} bytes but has {offsets[1] - offsets[0]}; "
                "the file is damaged"
            )
        if base + offsets[1] > self._file.size:
            raise self._error(
                f"tensor {name!r} ends at byte {base + offsets[1]} but the file has {self._file.size}; "
                "it is truncated, download it again"
            )
        return _Entry(format, tuple(shape), base + offsets[0], base + offsets[1])


def _naturals(value: Any) -> bool:
    """True for a list of whole numbers from 0 to 2**63 - 1."""
    return isinstance(value, list) and all(type(v) is int and 0 <= v <= MAX_ELEMENTS for v in value)


class SafetensorsFolder:
    """The safetensors files of a model's directory: one, or those of its index.

    Raises CheckpointError if there are none, if a shard is missing, or if shards and index disagree.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: list[SafetensorsFile] = []
        self._owner: dict[str, SafetensorsFile] = {}
        try:
            index = directory / INDEX_NAME
            if index.exists():
                self._open_shards(index)
            else:
                self._open_single()
        except BaseException:
            self.close()
            raise

    def names(self) -> Collection[str]:
        """The tensors' names."""
        return self._owner.keys()

    def get(self, name: str) -> RawTensor:
        """A view of one tensor. Raises CheckpointError if there is none of that name."""
        file = self._owner.get(name)
        if file is None:
            raise CheckpointError(f"{self.directory} has no tensor {name}")
        return file.get(name)

    def close(self) -> None:
        """Gives the mappings up; tensors that were handed out stay valid."""
        for file in self._files:
            file.close()

    def drop_pages(self) -> None:
        """Lets the system take back the memory of what was read; views stay valid."""
        for file in self._files:
            file.drop_pages()

    def _open(self, path: Path) -> SafetensorsFile:
        file = SafetensorsFile(path)
        self._files.append(file)
        return file

    def _open_single(self) -> None:
        path = self.directory / SINGLE_NAME
        if not path.exists():
            others = sorted(self.directory.glob("*.safetensors"))
            if len(others) > 1:
                raise CheckpointError(
                    f"{self.directory} has {len(others)} safetensors files but no {INDEX_NAME}; "
                    "download the index as well"
                )
            if not others:
                raise CheckpointError(f"{self.directory} has no {SINGLE_NAME} and no {INDEX_NAME}")
            path = others[0]
        file = self._open(path)
        self._owner = dict.fromkeys(file.names(), file)

    def _open_shards(self, index: Path) -> None:
        weight_map = read_json_file(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index}: weight_map is missing or empty; download it again")
        for name, shard in weight_map.items():
            if not isinstance(shard, str) or not re.fullmatch(r"[\w.-]+\.safetensors", shard):
                raise CheckpointError(
                    f"{index}: tensor {name!r} names {reprlib.repr(shard)}, "
                    "which is not a file beside it"
                )
        shards = sorted(set(weight_map.values()))
        missing = [shard for shard in shards if not (self.directory / shard).exists()]
        if missing:
            raise CheckpointError(
                f"{self.directory} lacks {len(missing)} of {len(shards)} weight files "
                f"({missing[0]}{', ...' if len(missing) > 1 else ''}); download them as well"
            )
        files = {shard: self._open(self.directory / shard) for shard in shards}
        for name, shard in weight_map.items():
            if name not in files[shard].names():
                raise CheckpointError(
                    f"{index}: tensor {name!r} is not in {shard}; the files do not belong together"
                )
            self._owner[name] = files[shard]
