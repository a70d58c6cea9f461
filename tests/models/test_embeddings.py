"""Vectors of prompts against the hidden states of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.models.harness import ATOL, RTOL, memory_checkpoint, prompt_of, randomise
from tokenmill.config import CacheConfig, EngineConfig, LoadConfig, SchedulerConfig
from tokenmill.engine.build import SPARE_LOGITS, NativeRecorder, assemble
from tokenmill.engine.core import Engine
from tokenmill.engine.outputs import PooledOutput
from tokenmill.engine.pooling import Pooling, PoolingTask
from tokenmill.engine.request import EngineRequest
from tokenmill.engine.runner import Recorder
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.models.registry import build_model
from tokenmill.ops.native import NativeProvider
from tokenmill.ops.table import OpTable

SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
}

FAMILIES: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, tie_word_embeddings=True)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, sliding_window=24)),
}

PROMPTS = [prompt_of(131, n, n) for n in (90, 1, 33, 16)]


def engine_of(hf: Any, ops: OpTable, *, max_tokens: int = 128, recorded: bool = True) -> Engine:
    """An engine as ``build_engine`` makes it, of a model in memory."""
    config = EngineConfig(
        LoadConfig("test"),
        CacheConfig(memory_bytes=4 << 20),
        SchedulerConfig(max_num_batched_tokens=max_tokens, max_num_seqs=4),
    )
    model = build_model(
        memory_checkpoint(hf),
        ops,
        load=config.load,
        max_tokens=max_tokens,
        max_logits=4 + SPARE_LOGITS,
        max_model_len=None,
        cache_dtype="auto",
    )
    native = ops.providers[0]
    recorder: Recorder | None = None
    if recorded and isinstance(native, NativeProvider):
        recorder = NativeRecorder(native)
    return assemble(model, config, recorder, 1 << 30)[0]


def embed(engine: Engine, prompts: Sequence[list[int]], task: PoolingTask) -> list[torch.Tensor]:
    """All at once."""
    for index, prompt in enumerate(prompts):
        engine.add_request(EngineRequest(str(index), prompt, SamplingParams(), seed=0, pooling=task))
    found: dict[str, list[float]] = {}
    while engine.has_work:
        for out in engine.step():
            assert isinstance(out, PooledOutput)
            found[out.request_id] = out.embedding
    return [torch.tensor(found[str(index)]) for index in range(len(prompts))]


@torch.no_grad()
def expected(hf: Any, prompt: list[int], pooling: Pooling) -> torch.Tensor:
    out = hf.model(input_ids=torch.tensor([prompt]), use_cache=False)
    states: torch.Tensor = out.last_hidden_state[0].float()
    return states[-1] if pooling == "last" else states.mean(0)


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
def test_same_as_transformers(family: str, pooling: Pooling, ops: OpTable) -> None:
    hf = randomise(FAMILIES[family]())
    engine = engine_of(hf, ops)
    raw = embed(engine, PROMPTS, PoolingTask(pooling, None, normalize=False))
    short = embed(engine, PROMPTS, PoolingTask(pooling, 20, normalize=True))
    for prompt, vector, cut in zip(PROMPTS, raw, short, strict=True):
        theirs = expected(hf, prompt, pooling)
        torch.testing.assert_close(vector, theirs, atol=ATOL, rtol=RTOL)
        theirs = theirs[:20] / theirs[:20].norm()
        torch.testing.assert_close(cut, theirs, atol=ATOL, rtol=RTOL)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_the_same_bits_however_it_is_computed(pooling: Pooling, ops: OpTable) -> None:
    hf = randomise(FAMILIES["gemma2"]())
    task = PoolingTask(pooling, None, normalize=True)
    alone = [embed(engine_of(hf, ops, recorded=False), [prompt], task)[0] for prompt in PROMPTS]
    for max_tokens in (5, 32, 128):
        engine = engine_of(hf, ops, max_tokens=max_tokens)
        for _ in range(2):  # the second time with what the prefix cache holds
            together = embed(engine, PROMPTS, task)
            assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
        assert (engine.stats().prefix_hits > 0) == (pooling == "last")


def test_answers_are_not_disturbed(ops: OpTable) -> None:
    """Greedy answers beside vectors are those of an engine that makes none."""
    hf = randomise(FAMILIES["qwen3"]())
    params = SamplingParams(temperature=0.0, max_tokens=20, logprobs=2)
    results = []
    for vectors in (0, 3):
        engine = engine_of(hf, ops, max_tokens=16)
        engine.add_request(EngineRequest("answer", PROMPTS[2], params, seed=0))
        for index in range(vectors):
            task = PoolingTask("mean", None, normalize=True)
            engine.add_request(
                EngineRequest(f"v{index}", PROMPTS[index], SamplingParams(), seed=0, pooling=task)
            )
        answer = []
        while engine.has_work:
            answer += [
                (out.token_ids, out.logprobs)
                for out in engine.step()
                if not isinstance(out, PooledOutput)
            ]
        results.append(answer)
    assert results[0] == results[1]
    assert len(results[0]) == 20
