"""The engine over real operators: transformers' greedy tokens, and the same bits whatever else runs.

Tiny random models with every provider; the native one also records the step and replays it.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from tests.models.harness import MemoryCheckpoint, hf_greedy, memory_checkpoint, prompt_of, randomise
from tokenmill.config import CacheConfig, ComputeConfig, EngineConfig, LoadConfig, SchedulerConfig
from tokenmill.engine.build import assemble, choose_operators
from tokenmill.engine.core import Engine
from tokenmill.engine.request import EngineRequest
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.hardware import ThreadChoice
from tokenmill.models.registry import build_model

SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "attn_implementation": "eager",
}

PROMPTS = {"a": prompt_of(131, 45, 1), "b": prompt_of(131, 20, 2), "c": prompt_of(131, 1, 3)}
MANY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=3)
SEEDED = SamplingParams(seed=7, max_tokens=24, ignore_eos=True, logprobs=0, top_p=0.9)


@pytest.fixture(scope="module")
def llama() -> Any:
    return randomise(LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **SMALL)))


@pytest.fixture(scope="module")
def gemma() -> Any:
    """Four layers with a window of 10 tokens, and two without."""
    config = Gemma3TextConfig(
        num_hidden_layers=6,
        sliding_window=10,
        sliding_window_pattern=3,
        query_pre_attn_scalar=16,
        **SMALL,
    )
    return randomise(Gemma3ForCausalLM(config))


@pytest.fixture(params=["reference", "native"])
def provider(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and importlib.util.find_spec("tokenmill._native") is None:
        pytest.skip("the native module is not built")
    return str(request.param)


def engine_of(
    checkpoint: MemoryCheckpoint,
    provider: str,
    *,
    budget: int = 64,
    seqs: int = 4,
    blocks: int | None = None,
    caching: bool = True,
) -> Engine:
    compute = ComputeConfig(num_threads=2, providers=(provider,))
    config = EngineConfig(
        LoadConfig("test"),
        CacheConfig(enable_prefix_caching=caching),
        SchedulerConfig(budget, seqs, 128),
        compute,
    )
    operators = choose_operators(compute, ThreadChoice(2, (), "test"))
    model = build_model(
        checkpoint,
        operators.table,
        load=config.load,
        max_tokens=budget,
        max_logits=seqs + 64,
        max_model_len=128,
        cache_dtype="auto",
    )
    recorder = operators.recorder()
    assert (recorder is not None) == (provider == "native")
    if blocks is not None:
        engine, memory = assemble(model, config, None, 1 << 30)
        small = CacheConfig(memory.block_bytes * blocks, caching)
        config = EngineConfig(config.load, small, config.scheduler, compute)
    engine, _ = assemble(model, config, recorder, 1 << 30)
    return engine


def run(
    engine: Engine, names: list[str], params: SamplingParams = MANY
) -> dict[str, tuple[list[int], list[Any]]]:
    results: dict[str, tuple[list[int], list[Any]]] = {}
    for name in names:
        engine.add_request(EngineRequest(name, PROMPTS[name], params, seed=params.seed or 0))
        results[name] = ([], [])
    while engine.has_work:
        for out in engine.step():
            results[out.request_id][0].extend(out.token_ids)
            results[out.request_id][1].extend(out.logprobs or [])
    return results


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_greedy_tokens_are_those_of_transformers(
    family: str, provider: str, request: pytest.FixtureRequest
) -> None:
    hf = request.getfixturevalue(family)
    results = run(engine_of(memory_checkpoint(hf), provider), list(PROMPTS))
    for name, prompt in PROMPTS.items():
        assert results[name][0] == hf_greedy(hf, prompt, 24)


@pytest.mark.parametrize("family", ["llama", "gemma"])
@pytest.mark.parametrize("params", [MANY, SEEDED], ids=["greedy", "seeded"])
def test_a_result_belongs_to_its_request(
    family: str, provider: str, params: SamplingParams, request: pytest.FixtureRequest
) -> None:
    checkpoint = memory_checkpoint(request.getfixturevalue(family))
    plain = engine_of(checkpoint, provider, caching=False)
    alone = {name: run(plain, [name], params)[name] for name in PROMPTS}

    together = engine_of(checkpoint, provider)
    assert run(together, list(PROMPTS), params) == alone
    assert run(together, list(reversed(PROMPTS)), params) == alone
    assert together.stats().prefix_hits == 32 + 16

    assert run(engine_of(checkpoint, provider, budget=5, seqs=2), list(PROMPTS), params) == alone

    # Just enough for one request of max_model_len.
    tight = engine_of(checkpoint, provider, budget=16, blocks=8 if family == "llama" else 14)
    assert run(tight, ["c", "b", "a"], params) == alone
    # Gemma's short windows hold so little that the others wait instead.
    assert family == "gemma" or tight.stats().preemptions > 0
