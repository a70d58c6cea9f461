"""Reading of safetensors files, whole and hostile."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tokenmill.errors import CheckpointError
from tokenmill.weights.ggml_formats import plain
from tokenmill.weights.safetensors_file import SafetensorsFile, SafetensorsFolder, read_json_file

ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def file_bytes(header: Any, data: bytes = bytes(16), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def test_reads_what_the_safetensors_package_writes(tmp_path: Path) -> None:
    tensors = {
        "f32": torch.randn(3, 5),
        "f16": torch.randn(4).to(torch.float16),
        "bf16": torch.randn(2, 3, 4).to(torch.bfloat16),
        "f64": torch.randn(2, dtype=torch.float64),
        "i64": torch.arange(-3, 3),
        "i32": torch.arange(5, dtype=torch.int32),
        "i16": torch.arange(5, dtype=torch.int16),
        "i8": torch.arange(-2, 3, dtype=torch.int8),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
    }
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "m.safetensors")
    assert set(file.names()) == set(tensors)
    for name, expected in tensors.items():
        raw = file.get(name)
        assert raw.shape == tuple(expected.shape)
        assert torch.equal(plain(raw), expected), name
        assert plain(raw).dtype == expected.dtype
    with pytest.raises(CheckpointError, match="no tensor absent"):
        file.get("absent")


def test_unaligned_data_is_read(tmp_path: Path) -> None:
    text = json.dumps({"w": ENTRY}).encode()
    text += b" " * ((1 - len(text)) % 4)
    path = tmp_path / "m.safetensors"
    path.write_bytes(file_bytes(text, torch.tensor([1.0, 2, 3, 4]).numpy().tobytes()))
    assert plain(SafetensorsFile(path).get("w")).tolist() == [[1, 2], [3, 4]]


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "short": (b"1234567", "too short"),
    "absurd header": (file_bytes({}, length=1 << 60), "header would have"),
    "header past the end": (file_bytes({}, length=1 << 20), "ends within its header"),
    "not json": (file_bytes(b"{]"), "not valid JSON"),
    "not utf-8": (file_bytes(b'{"\xff": 1}'), "not valid JSON"),
    "not an object": (file_bytes([]), "not an object"),
    "deep nesting": (file_bytes(b"[" * 100_000), "not valid JSON"),
    "duplicate": (file_bytes(b'{"w": 1, "w": 2}'), "occurs twice"),
    "entry not an object": (file_bytes({"w": 1}), "'w' needs exactly"),
    "entry incomplete": (file_bytes({"w": {"dtype": "F32"}}), "'w' needs exactly"),
    "long name": (file_bytes({"w" * 2000: ENTRY}), "name has 2000 characters"),
    "unknown type": (file_bytes({"w": ENTRY | {"dtype": "F8_E4M3"}}), "F8_E4M3.* not supported"),
    "type not text": (file_bytes({"w": ENTRY | {"dtype": ["F32"]}}), "not supported"),
    "negative shape": (file_bytes({"w": ENTRY | {"shape": [-2, -2]}}), "impossible shape"),
    "boolean shape": (file_bytes({"w": ENTRY | {"shape": [True, 4]}}), "impossible shape"),
    "real shape": (file_bytes({"w": ENTRY | {"shape": [2.0, 2]}}), "impossible shape"),
    "overflow": (file_bytes({"w": ENTRY | {"shape": [1 << 40, 1 << 40]}}), "impossible shape"),
    "many dimensions": (file_bytes({"w": ENTRY | {"shape": [1] * 99}}), "impossible shape"),
    "offsets reversed": (file_bytes({"w": ENTRY | {"data_offsets": [16, 0]}}), "impossible data_off"),
    "one offset": (file_bytes({"w": ENTRY | {"data_offsets": [16]}}), "impossible data_offsets"),
    "wrong size": (file_bytes({"w": ENTRY | {"data_offsets": [0, 12]}}), "needs 16 bytes but has 12"),
    "past the end": (file_bytes({"w": ENTRY | {"data_offsets": [16, 32]}}), "truncated"),
    "truncated": (file_bytes({"w": ENTRY}, bytes(15)), "truncated"),
    "overlap": (file_bytes({"a": ENTRY, "b": ENTRY}), "'b' overlaps"),
    "gap": (
        file_bytes({"a": ENTRY, "b": ENTRY | {"data_offsets": [20, 36]}}, bytes(36)),
        "'b' leaves a gap",
    ),
    "trailing bytes": (file_bytes({"w": ENTRY}, bytes(17)), "longer than its header says"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_give_one_clear_error(case: str, tmp_path: Path) -> None:
    data, message = HOSTILE[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def mutant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "m.safetensors"


HEADER = json.dumps(
    {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
    }
).encode()


@settings(max_examples=300, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 220), st.sampled_from(list(b'0129-.e"{}[],:FIB\x00\xff'))), max_size=4
    ),
    cut=st.none() | st.integers(0, 220),
)
def test_mutations_are_read_or_refused(mutant: Path, edits: Any, cut: int | None) -> None:
    data = bytearray(file_bytes(HEADER)[:cut])
    for at, byte in edits:
        data[at : at + 1] = bytes([byte])
    mutant.write_bytes(data)
    with contextlib.suppress(CheckpointError):
        file = SafetensorsFile(mutant)
        for name in file.names():
            assert plain(file.get(name)).shape == file.get(name).shape


def shards(directory: Path) -> dict[str, torch.Tensor]:
    """Two shards and their index; returns what they hold."""
    tensors = {"a": torch.randn(2, 3), "b": torch.randn(4), "c": torch.randn(1, 1)}
    names = {f"model-0000{i}-of-00002.safetensors": keys for i, keys in ((1, "ab"), (2, "c"))}
    for shard, keys in names.items():
        save_file({key: tensors[key] for key in keys}, directory / shard)
    weight_map = {key: shard for shard, keys in names.items() for key in keys}
    index = {"metadata": {"total_size": 44}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return tensors


def test_shards(tmp_path: Path) -> None:
    tensors = shards(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    folder = SafetensorsFolder(tmp_path)
    assert set(folder.names()) == set(tensors)
    for name, expected in tensors.items():
        assert torch.equal(plain(folder.get(name)), expected)
    with pytest.raises(CheckpointError, match="no tensor d"):
        folder.get("d")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of 2 weight files \(model-00002-of-00002"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (None, "weight_map is missing"),
        ({}, "weight_map is missing or empty"),
        ({"a": "../../etc/passwd.safetensors"}, "not a file beside it"),
        ({"a": 3}, "not a file beside it"),
        ({"z": "model-00001-of-00002.safetensors"}, "'z' is not in model-00001"),
    ],
)
def test_a_wrong_index(weight_map: Any, message: str, tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFolder(tmp_path)


def test_a_single_file_of_any_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        SafetensorsFolder(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors")
    assert set(SafetensorsFolder(tmp_path).names()) == {"a"}
    save_file({"b": torch.zeros(1)}, tmp_path / "y.safetensors")
    with pytest.raises(CheckpointError, match="2 safetensors files but no"):
        SafetensorsFolder(tmp_path)
    save_file({"c": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert set(SafetensorsFolder(tmp_path).names()) == {"c"}


def test_a_huge_configuration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(CheckpointError, match="too many"):
        read_json_file(path)
