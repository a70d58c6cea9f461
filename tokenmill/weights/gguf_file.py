"""Reads GGUF files, versions 2 and 3, little endian.

Written after the format description in ggml's ``docs/gguf.md``. A file is taken to be hostile: every
count, length and offset is compared with the file's size before anything is allocated for it, and
each way to be wrong gives one CheckpointError.
"""

from __future__ import annotations

import array
import itertools
import math
import reprlib
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from tokenmill.errors import CheckpointError
from tokenmill.weights.ggml_formats import FORMATS_BY_ID, UNREAD_FORMATS, byte_size
from tokenmill.weights.mapped_file import MappedFile
from tokenmill.weights.tensor import RawTensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_KEY_BYTES = 1024
MAX_TENSOR_NAME_BYTES = 255
MAX_DIMENSIONS = 4
MAX_ELEMENTS = (1 << 63) - 1
MAX_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 16
MAX_ARRAY = 1 << 22
MAX_STRING_BYTES = 64 << 20
"""Far above what any model has. They bound the memory that a large hostile file can ask for."""

STRING, ARRAY = 8, 9

# Value type number: (array.array and struct code, bytes).
NUMBERS: dict[int, tuple[str, int]] = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    7: ("?", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}

MIN_ENTRY_BYTES = 8 + 1 + 4 + 1
"""Bytes of the smallest metadata entry: key length, key of one byte, type, value."""

MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
"""Bytes of the smallest tensor description: name length, name, rank, one extent, type, offset."""

_LENGTH = struct.Struct("<Q")


class StringArray(Sequence[str]):
    """An array of strings in a GGUF file, decoded when first used.

    A vocabulary has hundreds of thousands of entries, so opening a file only walks over them.
    Raises CheckpointError on first use if an entry is not UTF-8.
    """

    def __init__(self, file: MappedFile, what: str, start: int, count: int) -> None:
        self._file = file
        self._what = what
        self._start = start
        self._count = count
        self._strings: list[str] | None = None
        self.end = self._walk()

    def _walk(self) -> int:
        """Where the array ends; finds out that all lengths stay inside the file."""
        buffer, read, at = self._file.buffer, _LENGTH.unpack_from, self._start
        try:
            for _ in range(self._count):
                at += 8 + read(buffer, at)[0]
        except (struct.error, OverflowError):
            at = self._file.size + 1
        if at > self._file.size:
            raise CheckpointError(
                f"{self._file.path}: {self._what} runs past the end of the file; "
                "it is truncated or damaged, download it again"
            )
        return at

    def _decoded(self) -> list[str]:
        if self._strings is None:
            buffer, read, at = self._file.buffer, _LENGTH.unpack_from, self._start
            strings: list[str] = []
            append = strings.append
            try:
                for _ in range(self._count):
                    start = at + 8
                    at = start + read(buffer, at)[0]
                    append(str(buffer[start:at], "utf-8"))
            except UnicodeDecodeError as error:
                raise CheckpointError(
                    f"{self._file.path}: entry {len(strings)} of {self._what} is not UTF-8"
                ) from error
            self._strings = strings
        return self._strings

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._decoded()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._decoded() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"StringArray({self._what}, {self._count} entries)"

    def positions(self, texts: Sequence[str]) -> dict[str, int]:
        """Where each of a few texts stands in the array, for those that do; decodes nothing."""
        buffer, candidates = self._file.buffer, dict[int, str]()
        for text in texts:
            entry = text.encode()
            pattern = _LENGTH.pack(len(entry)) + entry
            at = buffer.find(pattern, self._start, self.end)
            while at >= 0:
                candidates[at] = text
                at = buffer.find(pattern, at + 1, self.end)
        # The bytes may also occur within an entry, so only the starts of entries count.
        result: dict[str, int] = {}
        read, at, last = _LENGTH.unpack_from, self._start, max(candidates, default=-1)
        for index in range(self._count):
            if at > last:
                break
            if at in candidates:
                result.setdefault(candidates[at], index)
            at += 8 + read(buffer, at)[0]
        return result


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. shape: row-major (GGUF reverses it). start, stop: bytes in the file."""

    name: str
    format: str
    shape: tuple[int, ...]
    start: int
    stop: int


class GGUFFile:
    """A GGUF file: ``metadata`` by key, ``tensors`` by name, and views of the tensors' bytes.

    Metadata values are int, float, bool, str, a list of numbers, or a StringArray.
    Raises CheckpointError for anything that is not a whole, well-formed file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            reader = _Reader(self._file)
            self.version, tensor_count, entry_count = reader.header()
            self.metadata: dict[str, Any] = reader.metadata(entry_count)
            self.tensors: dict[str, TensorInfo] = reader.tensors(tensor_count, self.metadata)
        except BaseException:
            self._file.close()
            raise

    def get(self, name: str) -> RawTensor:
        """The tensor of that name, as the file calls it. Raises CheckpointError if there is none."""
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.path} has no tensor {name}")
        return RawTensor(info.name, info.format, info.shape, self._file.view(info.start, info.stop))

    def close(self) -> None:
        """Gives the mapping up; tensors that were handed out stay valid."""
        self._file.close()

    def drop_pages(self) -> None:
        """Lets the system take back the memory of what was read; views stay valid."""
        self._file.drop_pages()


class _Reader:
    """Walks over the head of a file."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._at = 0

    def _error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._file.path}: {problem}")

    def _left(self) -> int:
        return self._file.size - self._at

    def _take(self, size: int, what: str) -> int:
        """Moves ``size`` bytes on and returns where they start."""
        if size > self._left():
            raise self._error(
                f"the file ends within {what}; it is truncated or damaged, download it again"
            )
        start = self._at
        self._at += size
        return start

    def _number(self, code: str, size: int, what: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._file.buffer, self._take(size, what))
        return value

    def _string(self, what: str, least: int, limit: int) -> str:
        size = self._number("Q", 8, what)
        if not least <= size <= limit:
            raise self._error(f"{what} has a length of {size} bytes; {least} to {limit} are allowed")
        start = self._take(size, what)
        try:
            return str(self._file.buffer[start : start + size], "utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"{what} is not UTF-8 text") from error

    def header(self) -> tuple[int, int, int]:
        """(version, number of tensors, number of metadata entries)."""
        if self._file.buffer[:4] != MAGIC:
            raise self._error("not a GGUF file (it does not start with 'GGUF')")
        self._take(4, "the header")
        version = self._number("I", 4, "the header")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            if swapped in VERSIONS:
                raise self._error("a big-endian GGUF file; convert it to little endian")
            raise self._error(
                f"GGUF version {version} is not supported (2 and 3 are); convert the model again"
            )
        tensors = self._number("Q", 8, "the header")
        entries = self._number("Q", 8, "the header")
        for count, limit, least, what in (
            (entries, MAX_ENTRIES, MIN_ENTRY_BYTES, "metadata entries"),
            (tensors, MAX_TENSORS, MIN_TENSOR_BYTES, "tensors"),
        ):
            if count > limit:
                raise self._error(f"claims {count} {what}; at most {limit} are allowed")
            if count > self._left() // least:
                raise self._error(
                    f"claims {count} {what}, more than a file of {self._file.size} bytes can hold"
                )
        return version, tensors, entries

    def metadata(self, count: int) -> dict[str, Any]:
        """All key-value pairs."""
        result: dict[str, Any] = {}
        for _ in range(count):
            key = self._string("a metadata key", 1, MAX_KEY_BYTES)
            if key in result:
                raise self._error(f"metadata key {key!r} occurs twice")
            what = f"metadata {key!r}"
            result[key] = self._value(self._number("I", 4, what), what)
        return result

    def _value(self, kind: int, what: str) -> Any:
        if kind in NUMBERS:
            return self._numbers(kind, 1, what)[0]
        if kind == STRING:
            return self._string(what, 0, MAX_STRING_BYTES)
        if kind != ARRAY:
            raise self._error(f"{what} has the unknown type {kind}")
        kind = self._number("I", 4, what)
        count = self._number("Q", 8, what)
        if count > MAX_ARRAY:
            raise self._error(f"{what} claims {count} values; at most {MAX_ARRAY} are allowed")
        if kind in NUMBERS:
            return self._numbers(kind, count, what)
        if kind == STRING:
            if count > self._left() // 8:
                raise self._error(f"{what} claims {count} strings, more than the file can hold")
            strings = StringArray(self._file, what, self._at, count)
            self._at = strings.end
            return strings
        if kind == ARRAY:
            raise self._error(f"{what} is an array of arrays, which is not supported")
        raise self._error(f"{what} is an array of the unknown type {kind}")

    def _numbers(self, kind: int, count: int, what: str) -> list[Any]:
        code, size = NUMBERS[kind]
        if count > self._left() // size:
            raise self._error(
                f"{what} claims {count} values but the file ends before that; download it again"
            )
        start = self._take(count * size, what)
        data = self._file.buffer[start : start + count * size]
        if code == "?":
            if data.strip(b"\0\1"):
                raise self._error(f"{what} is a truth value that is neither 0 nor 1")
            return [byte == 1 for byte in data]
        values = array.array(code)
        if values.itemsize != size:
            return list(struct.unpack(f"<{count}{code}", data))
        values.frombytes(data)
        if sys.byteorder == "big":
            values.byteswap()
        return values.tolist()

    def tensors(self, count: int, metadata: dict[str, Any]) -> dict[str, TensorInfo]:
        """All tensors; checks that each lies inside the file and that none overlap."""
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if (
            not isinstance(alignment, int)
            or isinstance(alignment, bool)
            or not 8 <= alignment <= MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self._error(
                f"general.alignment is {reprlib.repr(alignment)}, "
                f"not a power of two from 8 to {MAX_ALIGNMENT}"
            )
        if count and metadata.get("split.count", 1) not in (0, 1):
            raise self._error(
                f"is one of {metadata['split.count']} parts of a split model; "
                "join them into one file first (llama-gguf-split --merge)"
            )
        found: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = self._string("a tensor's name", 1, MAX_TENSOR_NAME_BYTES)
            if name in found:
                raise self._error(f"tensor {name!r} occurs twice")
            found[name] = self._tensor(name, alignment)
        base = math.ceil(self._at / alignment) * alignment
        result: dict[str, TensorInfo] = {}
        for name, (format, shape, offset, size) in found.items():
            start = base + offset
            if start + size > self._file.size:
                raise self._error(
                    f"tensor {name!r} ends at byte {start + size} but the file has {self._file.size}; "
                    "it is truncated or damaged, download it again"
                )
            result[name] = TensorInfo(name, format, shape, start, start + size)
        self._check_overlaps(result)
        return result

    def _tensor(self, name: str, alignment: int) -> tuple[str, tuple[int, ...], int, int]:
        """(format, row-major shape, offset, bytes) of the description that follows a name."""
        what = f"the description of tensor {name!r}"
        rank = self._number("I", 4, what)
        if not 1 <= rank <= MAX_DIMENSIONS:
            raise self._error(
                f"tensor {name!r} has {rank} dimensions; 1 to {MAX_DIMENSIONS} are allowed"
            )
        shape = tuple(self._number("Q", 8, what) for _ in range(rank))[::-1]
        if 0 in shape or math.prod(shape) > MAX_ELEMENTS:
            raise self._error(f"tensor {name!r} has the impossible shape {list(shape)}")
        type_id = self._number("I", 4, what)
        block = FORMATS_BY_ID.get(type_id)
        if block is None:
            kind = UNREAD_FORMATS.get(type_id)
            known = f"the format {kind}" if kind else f"the unknown format number {type_id}"
            raise self._error(
                f"tensor {name!r} has {known}, which is not supported; use another quantisation"
            )
        offset = self._number("Q", 8, what)
        if offset % alignment:
            raise self._error(
                f"tensor {name!r} starts at {offset}, not a multiple of the alignment {alignment}"
            )
        try:
            size = byte_size(block.name, shape)
        except CheckpointError as error:
            raise self._error(f"tensor {name!r}: {error}") from error
        return block.name, shape, offset, size

    def _check_overlaps(self, tensors: dict[str, TensorInfo]) -> None:
        ordered = sorted(tensors.values(), key=lambda info: info.start)
        for before, after in itertools.pairwise(ordered):
            if after.start < before.stop:
                raise self._error(f"tensors {before.name!r} and {after.name!r} overlap")
