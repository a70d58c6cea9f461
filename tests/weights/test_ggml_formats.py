"""Decoding of block formats, against the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from tokenmill.errors import CheckpointError
from tokenmill.weights import ggml_formats
from tokenmill.weights.ggml_formats import DECODERS, FORMATS, byte_size, dequantize, plain
from tokenmill.weights.tensor import RawTensor

SCALE_OFFSETS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def random_blocks(name: str, count: int, seed: int) -> np.ndarray:
    """Blocks with random quantised bits and finite fp16 scales (subnormals included)."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (count, FORMATS[name].block_bytes), dtype=np.uint8)
    for at in SCALE_OFFSETS[name]:
        bits = rng.integers(0, 0x7C00, count, dtype=np.uint16) | (
            rng.integers(0, 2, count, dtype=np.uint16) << 15
        )
        blocks[:, at : at + 2] = bits.astype("<u2").view(np.uint8).reshape(count, 2)
    return blocks


def same_bits(ours: torch.Tensor, theirs: np.ndarray) -> bool:
    return bool((ours.numpy().view(np.uint32) == theirs.astype(np.float32).view(np.uint32)).all())


@pytest.mark.parametrize("name", sorted(DECODERS))
@pytest.mark.parametrize("seed", [0, 1])
def test_decodes_the_same_bits_as_the_gguf_package(name: str, seed: int) -> None:
    rows, blocks_per_row = 5, 3
    blocks = random_blocks(name, rows * blocks_per_row, seed)
    width = blocks_per_row * FORMATS[name].block_size
    raw = RawTensor("w", name, (rows, width), torch.from_numpy(blocks.reshape(-1)))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = gguf.quants.dequantize(blocks.reshape(rows, -1), gguf.GGMLQuantizationType[name])
    assert dequantize(raw).shape == (rows, width)
    assert same_bits(dequantize(raw), expected)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = random_blocks("Q4_K", 11, 7)
    raw = RawTensor("w", "Q4_K", (11, 256), torch.from_numpy(blocks.reshape(-1)))
    whole = dequantize(raw)
    monkeypatch.setattr(ggml_formats, "CHUNK_ELEMENTS", 1024)
    assert torch.equal(dequantize(raw), whole)


@pytest.mark.parametrize("name", ["F16", "BF16", "F32", "F64", "I8", "I32"])
def test_plain_formats_at_any_alignment(name: str) -> None:
    values = torch.tensor([[1.0, -2.0, 3.0], [0.0, 100.0, -7.0]])
    data = values.to(ggml_formats.PLAIN_DTYPES[name]).view(torch.uint8).flatten()
    shifted = torch.cat((torch.zeros(3, dtype=torch.uint8), data))[3:]
    raw = RawTensor("w", name, (2, 3), shifted)
    assert torch.equal(dequantize(raw), values)
    assert plain(raw).dtype is ggml_formats.PLAIN_DTYPES[name]


def test_an_f32_result_is_not_the_file() -> None:
    data = torch.zeros(8, dtype=torch.uint8)
    dequantize(RawTensor("w", "F32", (2,), data)).fill_(1)
    assert not data.any()


def test_sizes_agree_with_the_gguf_package() -> None:
    for name, block in FORMATS.items():
        kind = gguf.GGMLQuantizationType[name]
        assert kind.value == block.type_id
        assert gguf.GGML_QUANT_SIZES[kind] == (block.block_size, block.block_bytes)


def test_errors_name_the_tensor() -> None:
    raw = RawTensor("blk.0.x", "Q4_K", (256,), torch.zeros(143, dtype=torch.uint8))
    with pytest.raises(CheckpointError, match=r"blk\.0\.x .*144 bytes but has 143"):
        dequantize(raw)
    with pytest.raises(CheckpointError, match="IQ1_S"):
        dequantize(RawTensor("w", "IQ1_S", (256,), torch.zeros(50, dtype=torch.uint8)))
    with pytest.raises(CheckpointError, match="whole number"):
        byte_size("Q4_0", (2, 33))
    with pytest.raises(CheckpointError, match="not a plain"):
        plain(RawTensor("w", "Q4_0", (32,), torch.zeros(18, dtype=torch.uint8)))
