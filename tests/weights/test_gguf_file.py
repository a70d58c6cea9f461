"""Reading of GGUF files, whole and hostile."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.weights.gguf_factory import (
    ARRAY,
    STRING,
    UINT32,
    Tensor,
    Typed,
    gguf_bytes,
    string,
    tiny_gguf,
    write_gguf,
)
from tokenmill.errors import CheckpointError
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.gguf_file import GGUFFile, StringArray

F32_ROW = Tensor("F32", (2, 4), bytes(range(32)))


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -30000)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -5)
    writer.add_float32("a.f32", 0.5)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "grüße")
    writer.add_array("a.texts", ["x", "", "日本", "y" * 300])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.flags", [True, False])
    writer.add_uint64("a.u64", 1 << 40)
    writer.add_int64("a.i64", -(1 << 40))
    writer.add_float64("a.f64", 0.1)
    weights = torch.randn(6, 64)
    writer.add_tensor("w", weights.numpy())
    q8 = gguf.quants.quantize(weights.numpy(), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q", q8, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GGUFFile(path)
    expected = {
        "general.architecture": "llama",
        "a.u8": 200,
        "a.i8": -3,
        "a.u16": 60000,
        "a.i16": -30000,
        "a.u32": 4_000_000_000,
        "a.i32": -5,
        "a.f32": 0.5,
        "a.bool": True,
        "a.text": "grüße",
        "a.texts": ["x", "", "日本", "y" * 300],
        "a.numbers": [1, -2, 3],
        "a.flags": [True, False],
        "a.u64": 1 << 40,
        "a.i64": -(1 << 40),
        "a.f64": 0.1,
    }
    assert set(file.metadata) == set(expected)
    for key, item in expected.items():
        assert file.metadata[key] == item, key
        assert type(file.metadata[key]) is type(item) or isinstance(file.metadata[key], StringArray)
    assert torch.equal(file.get("w").data.view(torch.float32).view(6, 64), weights)
    assert (file.get("q").format, file.get("q").shape) == ("Q8_0", (6, 64))
    assert file.get("q").data.numpy().tobytes() == q8.tobytes()


def test_strings_behave_as_a_sequence(tmp_path: Path) -> None:
    texts = ["<a>", "bb", "x\x03\0\0\0\0\0\0\0<b>", "<b>", "bb"]
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", {"t": texts}, {}))
    array = file.metadata["t"]
    assert len(array) == 5
    assert list(array) == texts
    assert array[1] == "bb"
    assert array[-2:] == texts[-2:]
    assert array.index("<b>") == 3
    assert "zz" not in array
    # The third entry holds the bytes of the fourth, length and all: it must not be taken for it.
    assert array.positions(["<b>", "bb", "nope"]) == {"<b>": 3, "bb": 1}


def test_version_2_and_a_file_without_tensors(tmp_path: Path) -> None:
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", {"k": 1}, {}, version=2))
    assert (file.version, file.metadata, file.tensors) == (2, {"k": 1}, {})
    with pytest.raises(CheckpointError, match="no tensor w"):
        file.get("w")


def test_tensors_outlive_the_file(tmp_path: Path) -> None:
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", {}, {"w": F32_ROW}))
    raw = file.get("w")
    file.close()
    assert raw.data.tolist() == list(range(32))


def test_views_do_not_write_to_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": F32_ROW})
    before = path.read_bytes()
    GGUFFile(path).get("w").data.fill_(255)
    assert path.read_bytes() == before


def test_another_alignment(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", {"general.alignment": 64}, {"a": F32_ROW, "b": F32_ROW}, alignment=64
    )
    file = GGUFFile(path)
    assert file.tensors["b"].start - file.tensors["a"].start == 64
    assert file.get("b").data.tolist() == list(range(32))


def strings(count: int, data: bytes) -> Typed:
    return Typed(ARRAY, struct.pack("<IQ", STRING, count) + data)


def numbers(count: int, kind: int = UINT32) -> Typed:
    return Typed(ARRAY, struct.pack("<IQ", kind, count))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "empty"),
    "magic": (gguf_bytes({}, {}, magic=b"GGML"), "not a GGUF file"),
    "short magic": (b"GG", "not a GGUF file"),
    "header cut": (gguf_bytes({}, {})[:15], "ends within the header"),
    "version 1": (gguf_bytes({}, {}, version=1), "version 1 is not supported"),
    "version 99": (gguf_bytes({}, {}, version=99), "version 99"),
    "big endian": (gguf_bytes({}, {}, version=3 << 24), "big-endian"),
    "absurd entries": (gguf_bytes({}, {}, entry_count=1 << 62), "metadata entries; at most 65536"),
    "absurd tensors": (gguf_bytes({}, {}, tensor_count=(1 << 64) - 1), "tensors; at most 65536"),
    "entries": (gguf_bytes({}, {}, entry_count=1000), "1000 metadata entries, more than a file"),
    "tensors": (gguf_bytes({}, {}, tensor_count=1000), "1000 tensors, more than a file"),
    "key length": (gguf_bytes({"k" * 70000: 1}, {}), "a metadata key has a length of 70000"),
    "empty key": (gguf_bytes({"": 1}, {}), "a metadata key has a length of 0"),
    "key not utf-8": (
        gguf_bytes({}, {}, entry_count=1)[:24] + string(b"\xff\xfe") + bytes(32),
        "key is not UTF-8",
    ),
    "duplicate key": (
        gguf_bytes({}, {}, entry_count=2)[:24]
        + (string("k") + struct.pack("<I", 4) + struct.pack("<I", 1)) * 2,
        "'k' occurs twice",
    ),
    "unknown type": (gguf_bytes({"k": Typed(77, bytes(8))}, {}), "unknown type 77"),
    "unknown array type": (gguf_bytes({"k": numbers(1, 77)}, {}), "array of the unknown type 77"),
    "nested array": (gguf_bytes({"k": numbers(1, ARRAY)}, {}), "array of arrays"),
    "bool of 2": (gguf_bytes({"k": Typed(7, b"\2")}, {}), "neither 0 nor 1"),
    "absurd array": (gguf_bytes({"k": numbers(1 << 60)}, {}), "values; at most 4194304"),
    "absurd string array": (gguf_bytes({"k": strings(1 << 60, b"")}, {}), "values; at most 4194304"),
    "absurd string": (
        gguf_bytes({"k": Typed(STRING, struct.pack("<Q", 1 << 40))}, {}),
        "'k' has a length of 1099511627776",
    ),
    "huge array": (gguf_bytes({"k": numbers(1000)}, {}), "1000 values but the file ends"),
    "huge string array": (gguf_bytes({"k": strings(1000, b"")}, {}), "1000 strings, more than"),
    "string past the end": (
        gguf_bytes({"k": Typed(STRING, struct.pack("<Q", 1 << 20))}, {}),
        "ends within metadata 'k'",
    ),
    "strings past the end": (
        gguf_bytes({"k": strings(2, string("a") + struct.pack("<Q", 1 << 40))}, {}),
        "'k' runs past the end",
    ),
    "strings overflow": (
        gguf_bytes({"k": strings(2, struct.pack("<QQ", (1 << 64) - 1, 1))}, {}),
        "'k' runs past the end",
    ),
    "alignment 0": (gguf_bytes({"general.alignment": 0}, {}), "general.alignment is 0"),
    "alignment 48": (gguf_bytes({"general.alignment": 48}, {}), "general.alignment is 48"),
    "alignment text": (gguf_bytes({"general.alignment": "a"}, {}), "general.alignment is 'a'"),
    "split": (gguf_bytes({"split.count": 3}, {"w": F32_ROW}), "one of 3 parts of a split model"),
    "no dimensions": (gguf_bytes({}, {"w": Tensor("F32", (), b"")}), "'w' has 0 dimensions"),
    "five dimensions": (gguf_bytes({}, {"w": Tensor("F32", (1,) * 5, bytes(4))}), "'w' has 5 dim"),
    "zero extent": (gguf_bytes({}, {"w": Tensor("F32", (2, 0), b"")}), "impossible shape"),
    "product overflow": (
        gguf_bytes({}, {"w": Tensor("F32", (1 << 32, 1 << 32), bytes(32))}),
        "impossible shape",
    ),
    "bytes overflow": (gguf_bytes({}, {"w": Tensor("F64", (1 << 62,), bytes(32))}), "ends at byte"),
    "unknown format": (gguf_bytes({}, {"w": Tensor(99, (32,), bytes(32))}), "format number 99"),
    "unread format": (gguf_bytes({}, {"w": Tensor("IQ1_S", (256,), bytes(64))}), "IQ1_S"),
    "partial block": (
        gguf_bytes({}, {"w": Tensor("Q4_0", (2, 48), bytes(64))}),
        "whole number of Q4_0",
    ),
    "misaligned": (gguf_bytes({}, {"w": Tensor("F32", (4,), bytes(64), offset=8)}), "alignment 32"),
    "past the end": (
        gguf_bytes({}, {"w": Tensor("F32", (4,), bytes(16), offset=1 << 40)}),
        "'w' ends at byte .* truncated",
    ),
    "overlap": (
        gguf_bytes({}, {"a": F32_ROW, "b": Tensor("F32", (2, 4), bytes(32), offset=0)}),
        "'a' and 'b' overlap",
    ),
    "truncated data": (gguf_bytes({}, {"w": F32_ROW})[:-1], "'w' ends at byte .* truncated"),
    "truncated list": (gguf_bytes({}, {"name" * 30: F32_ROW})[:60], "ends within a tensor's name"),
    "long name": (gguf_bytes({}, {"w" * 256: F32_ROW}), "name has a length of 256"),
    "duplicate tensor": (
        gguf_bytes({}, {}, tensor_count=2)[:24]
        + (string("w") + struct.pack("<IQIQ", 1, 1, 0, 0)) * 2
        + bytes(64),
        "'w' occurs twice",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_give_one_clear_error(case: str, tmp_path: Path) -> None:
    data, message = HOSTILE[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_a_token_that_is_not_utf8_is_named_when_it_is_used(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"t": strings(2, string("a") + string(b"\xff"))}, {})
    array = GGUFFile(path).metadata["t"]
    with pytest.raises(CheckpointError, match="entry 1 of metadata 't' is not UTF-8"):
        list(array)


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        GGUFFile(tmp_path / "absent.gguf")
    with pytest.raises(CheckpointError, match="not a regular file"):
        GGUFFile(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match="not a regular file"):
        GGUFFile(tmp_path / "pipe.gguf")


def read_everything(path: Path) -> None:
    """Opens a file and touches all that is in it."""
    checkpoint = open_checkpoint(path)
    for name in checkpoint.names():
        raw = checkpoint.get(name)
        assert raw.data.numel() > 0
    for item in checkpoint.metadata.values():
        if isinstance(item, StringArray):
            list(item)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = tiny_gguf(tmp_path_factory.mktemp("fuzz") / "m.gguf")
    return path.with_name("mutant.gguf"), path.read_bytes()


EDITS = st.lists(
    st.tuples(
        st.integers(0, 4000),
        st.sampled_from([0, 1, 2, 8, 9, 0x7F, 0x80, 0xFF]) | st.integers(0, 255),
        st.integers(1, 8),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS, cut=st.none() | st.integers(0, 4000))
def test_mutations_are_read_or_refused(valid: tuple[Path, bytes], edits: Any, cut: int | None) -> None:
    path, data = valid
    mutant = bytearray(data if cut is None else data[:cut])
    for at, byte, run in edits:
        mutant[at : at + run] = bytes([byte]) * len(mutant[at : at + run])
    path.write_bytes(mutant)
    with contextlib.suppress(CheckpointError):
        read_everything(path)
