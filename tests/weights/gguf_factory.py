"""Writes GGUF files for tests: byte by byte, so that they can be wrong in every way."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10

TYPE_IDS = {kind.name: kind.value for kind in gguf.GGMLQuantizationType}


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written. shape: row-major. offset: None for the next aligned place."""

    format: str | int
    shape: tuple[int, ...]
    data: bytes
    offset: int | None = None


@dataclass(frozen=True)
class Typed:
    """A metadata value with its GGUF type spelt out; ``data`` is written as it is."""

    kind: int
    data: bytes


def string(text: str | bytes) -> bytes:
    """A GGUF string: its length in bytes, then the bytes."""
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> Typed:
    """A Python value in the GGUF type that converters use for it."""
    if isinstance(item, Typed):
        return item
    if isinstance(item, bool):
        return Typed(BOOL, struct.pack("<?", item))
    if isinstance(item, int):
        kind, code = (
            (UINT32, "<I") if 0 <= item < 1 << 32 else (INT32, "<i") if item < 0 else (UINT64, "<Q")
        )
        return Typed(kind, struct.pack(code, item))
    if isinstance(item, float):
        return Typed(FLOAT32, struct.pack("<f", item))
    if isinstance(item, str):
        return Typed(STRING, string(item))
    items = [value(v) for v in item]
    kind = items[0].kind if items else UINT32
    assert all(i.kind == kind for i in items)
    return Typed(ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(i.data for i in items))


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    alignment: int = 32,
    version: int = 3,
    magic: bytes = b"GGUF",
    tensor_count: int | None = None,
    entry_count: int | None = None,
) -> bytes:
    """A GGUF file. The counts in the header can be made to lie."""
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(metadata) if entry_count is None else entry_count,
    )
    for key, item in metadata.items():
        typed = value(item)
        head += string(key) + struct.pack("<I", typed.kind) + typed.data
    body = b""
    for name, tensor in tensors.items():
        body += bytes(-len(body) % alignment)
        offset = len(body) if tensor.offset is None else tensor.offset
        type_id = TYPE_IDS[tensor.format] if isinstance(tensor.format, str) else tensor.format
        head += string(name) + struct.pack("<I", len(tensor.shape))
        head += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        head += struct.pack("<IQ", type_id, offset)
        body += tensor.data
    return head + bytes(-len(head) % alignment) + body


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], **options: Any
) -> Path:
    """Writes ``gguf_bytes`` to a file and returns its path."""
    path.write_bytes(gguf_bytes(metadata, tensors, **options))
    return path


def quantized(array: torch.Tensor, format: str = "F32") -> Tensor:
    """A tensor in a GGML format, quantised by the gguf package."""
    data = gguf.quants.quantize(array.detach().float().numpy(), gguf.GGMLQuantizationType[format])
    return Tensor(format, tuple(array.shape), np.ascontiguousarray(data).tobytes())


def tiny_metadata(architecture: str = "llama", **overrides: Any) -> dict[str, Any]:
    """Metadata of a model of 2 layers, width 32, 4 heads of 8, 2 key heads, 64 tokens.

    overrides: keys without the architecture, dots as ``__`` (``rope__freq_base=1e6``); None removes.
    """
    values: dict[str, Any] = {
        "block_count": 2,
        "context_length": 128,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
    }
    if architecture.startswith("gemma"):
        values |= {
            "attention.key_length": 8,
            "attention.value_length": 8,
            "attention.sliding_window": 16,
        }
    metadata: dict[str, Any] = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key}": item for key, item in values.items()}
    metadata |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        + [f"t{i}" for i in range(3, 64)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    for key, item in overrides.items():
        name = f"{architecture}.{key.replace('__', '.')}"
        if item is None:
            del metadata[name]
        else:
            metadata[name] = item
    return metadata


def tiny_tensors(architecture: str = "llama", *, tied: bool = True, seed: int = 0) -> dict[str, Tensor]:
    """Random F32 tensors that fit ``tiny_metadata``."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (64, 32), "output_norm.weight": (32,)}
    if not tied:
        shapes["output.weight"] = (64, 32)
    for layer in range(2):
        parts: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (32,),
            "attn_output.weight": (32, 32),
            "ffn_norm.weight": (32,),
            "ffn_down.weight": (32, 64),
        }
        if architecture == "phi3":
            parts |= {"attn_qkv.weight": (64, 32), "ffn_up.weight": (128, 32)}
        else:
            parts |= {
                "attn_q.weight": (32, 32),
                "attn_k.weight": (16, 32),
                "attn_v.weight": (16, 32),
                "ffn_gate.weight": (64, 32),
                "ffn_up.weight": (64, 32),
            }
        if architecture == "qwen2":
            parts |= {"attn_q.bias": (32,), "attn_k.bias": (16,), "attn_v.bias": (16,)}
        if architecture in ("qwen3", "gemma3"):
            parts |= {"attn_q_norm.weight": (8,), "attn_k_norm.weight": (8,)}
        if architecture.startswith("gemma"):
            parts |= {"post_attention_norm.weight": (32,), "post_ffw_norm.weight": (32,)}
        if architecture == "olmo2":
            del parts["attn_norm.weight"], parts["ffn_norm.weight"]
            parts |= {"post_attention_norm.weight": (32,), "post_ffw_norm.weight": (32,)}
            parts |= {"attn_q_norm.weight": (32,), "attn_k_norm.weight": (16,)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
    return {name: quantized(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def tiny_gguf(path: Path, architecture: str = "llama", *, tied: bool = True, **overrides: Any) -> Path:
    """A whole, valid file of a tiny random model."""
    return write_gguf(
        path, tiny_metadata(architecture, **overrides), tiny_tensors(architecture, tied=tied)
    )
