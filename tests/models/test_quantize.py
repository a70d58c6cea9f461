"""Quantising while loading: the blocks, their error, and a model made of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from tests.models.harness import (
    OurModel,
    assert_results_belong_to_requests,
    hf_logits,
    memory_checkpoint,
    prompt_of,
    randomise,
    raw_tensor,
)
from tokenmill.config import LoadConfig
from tokenmill.errors import CheckpointError
from tokenmill.models.quantize import quantisable, quantise
from tokenmill.ops.table import OpTable
from tokenmill.weights.ggml_formats import dequantize

KINDS = {"int8": GGMLQuantizationType.Q8_0, "int4": GGMLQuantizationType.Q4_1}


def restored(matrix: torch.Tensor, kind: Any) -> torch.Tensor:
    return dequantize(quantise(raw_tensor("w", matrix), kind)).reshape(matrix.shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_bytes_are_those_of_gguf(kind: Any, dtype: torch.dtype) -> None:
    raw = quantise(raw_tensor("w", torch.randn(5, 96).to(dtype)), kind)
    assert raw.shape == (5, 96)
    assert raw.format == KINDS[kind].name
    theirs = gguf_dequantize(raw.data.view(5, -1).numpy(), KINDS[kind])
    assert torch.equal(torch.from_numpy(theirs.copy()), dequantize(raw).reshape(5, 96))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), exponent=st.integers(-3, 3), shift=st.floats(-2, 2))
def test_the_error_is_bounded_by_a_step(seed: int, exponent: int, shift: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    w = (torch.randn(3, 64, generator=generator) + shift) * 10.0**exponent
    blocks = w.view(-1, 32)
    step8 = blocks.abs().amax(1, keepdim=True) / 127
    # fp16 scales are off by 2^-11 of themselves, which adds up to 127 of them: an eighth of a step.
    assert bool(((restored(w, "int8").view(-1, 32) - blocks).abs() <= 0.6 * step8 + 1e-6).all())
    low, high = blocks.aminmax(dim=1, keepdim=True)
    error4 = (restored(w, "int4").view(-1, 32) - blocks).square().mean(1, keepdim=True).sqrt()
    # No worse than uniform rounding over the whole range, with room for fp16.
    assert bool((error4 <= 0.5 * (high - low) / 15 + 2e-3 * blocks.abs().amax(1, keepdim=True)).all())


def test_int4_searches_for_a_better_range() -> None:
    w = torch.randn(2000, 32, generator=torch.Generator().manual_seed(0))
    low, high = w.aminmax(dim=1, keepdim=True)
    step = (high - low) / 15
    plain = ((w - low) / step).round() * step + low
    assert (restored(w, "int4") - w).square().mean() < 0.98 * (plain - w).square().mean()


def test_constant_and_zero_blocks_are_kept() -> None:
    w = torch.stack([torch.zeros(32), torch.full((32,), 0.5), torch.full((32,), -3.0)])
    assert torch.equal(restored(w, "int4"), w)
    torch.testing.assert_close(restored(w, "int8"), w, rtol=1e-3, atol=0)


def test_what_is_not_quantised() -> None:
    assert quantisable(raw_tensor("w", torch.zeros(2, 32)))
    assert not quantisable(raw_tensor("w", torch.zeros(2, 40)))
    assert not quantisable(raw_tensor("w", torch.zeros(32)))
    assert not quantisable(quantise(raw_tensor("w", torch.zeros(2, 32)), "int8"))


def test_values_that_are_not_finite_are_refused() -> None:
    w = torch.zeros(2, 32)
    w[1, 3] = torch.inf
    with pytest.raises(CheckpointError, match="w holds values that are not finite"):
        quantise(raw_tensor("w", w), "int8")


def llama(**changes: Any) -> LlamaForCausalLM:
    config: dict[str, Any] = {
        "vocab_size": 131,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "attn_implementation": "eager",
    }
    return randomise(LlamaForCausalLM(LlamaConfig(**(config | changes))))


@pytest.mark.parametrize(("kind", "tolerance"), [("int8", 0.05), ("int4", 0.5)])
def test_a_quantised_model(ops: OpTable, kind: Any, tolerance: float) -> None:
    hf = llama()
    ours = OurModel(memory_checkpoint(hf), ops, load=LoadConfig("test", quantization=kind))
    prompt = prompt_of(131, 45)
    logits, expected = ours.logits(prompt), hf_logits(hf, prompt)
    error = (logits - expected).square().mean().sqrt() / expected.std()
    assert 0 < error < tolerance
    assert_results_belong_to_requests(ours)


def test_the_two_ends_of_an_int4_model_keep_8_bits(ops: OpTable) -> None:
    packed: list[str] = []
    pack = ops.pack
    ops.pack = lambda segments, **how: (  # type: ignore
        packed.extend(s.format for s in segments) or pack(segments, **how)
    )
    OurModel(memory_checkpoint(llama()), ops, load=LoadConfig("test", quantization="int4"))
    assert packed.count("Q8_0") == 2
    assert packed.count("Q4_1") == 2 * 7


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_matrices_in_another_type(ops: OpTable, dtype: Any) -> None:
    hf = llama()
    ours = OurModel(memory_checkpoint(hf), ops, load=LoadConfig("test", dtype=dtype))
    with torch.no_grad():
        for value in hf.parameters():
            if value.dim() == 2:
                value.copy_(value.to(getattr(torch, dtype)).float())
    prompt = prompt_of(131, 45)
    torch.testing.assert_close(ours.logits(prompt), hf_logits(hf, prompt), atol=2e-4, rtol=1e-4)


def test_a_matrix_that_overflows_float16_is_refused(ops: OpTable) -> None:
    checkpoint = memory_checkpoint(llama())
    name = "model.layers.1.mlp.down_proj.weight"
    checkpoint.tensors[name] = raw_tensor(name, torch.full((64, 96), 1e6))
    with pytest.raises(CheckpointError, match=r"down_proj.weight overflows float16"):
        OurModel(checkpoint, ops, load=LoadConfig("test", dtype="float16"))
