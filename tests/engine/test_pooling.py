"""Vectors of prompts: the same bits however the prompt was computed, beside whatever else."""

from __future__ import annotations

import math

import pytest
import torch

from tests.engine.fake_model import HIDDEN, LAYOUTS, Bench, prompt_of
from tokenmill.engine.pooling import Pooling, PoolingParams, PoolingState, PoolingTask
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.errors import RequestError

LENGTHS = {"short": 3, "one": 1, "block": 32, "long": 150, "odd": 77}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def task(
    pooling: Pooling = "last", dimensions: int | None = None, normalize: bool = True
) -> PoolingTask:
    return PoolingTask(pooling, dimensions, normalize)


def embed_all(bench: Bench, pooling: Pooling, tag: str = "") -> dict[str, list[float] | None]:
    for seed, (name, length) in enumerate(LENGTHS.items()):
        bench.add(name + tag, prompt_of(length, seed), SamplingParams(), pooling=task(pooling))
    results = bench.run()
    bench.assert_all_free()
    return {name: results[name + tag].embedding for name in LENGTHS}


Alone = tuple[str, Pooling, dict[str, list[float] | None]]


@pytest.fixture(
    scope="module",
    params=[(layout, pooling) for layout in LAYOUTS for pooling in ("last", "mean")],
    ids="-".join,
)
def alone(request: pytest.FixtureRequest) -> Alone:
    """Each prompt by itself, in one chunk, without a prefix cache."""
    layout, pooling = request.param
    found = {}
    for seed, (name, length) in enumerate(LENGTHS.items()):
        bench = Bench(layout, max_tokens=256, prefix_caching=False)
        bench.add(name, prompt_of(length, seed), SamplingParams(), pooling=task(pooling))
        found[name] = bench.run()[name].embedding
    return layout, pooling, found


def test_vectors(alone: Alone) -> None:
    vectors = list(alone[2].values())
    for vector in vectors:
        assert vector is not None
        assert len(vector) == HIDDEN
        assert math.isclose(math.hypot(*vector), 1, rel_tol=1e-6)
    assert len({tuple(vector or ()) for vector in vectors}) == len(vectors)


@pytest.mark.parametrize("budget", [3, 8, 17])
def test_chunked_and_in_company(alone: Alone, budget: int) -> None:
    layout, pooling, expected = alone
    bench = Bench(layout, max_tokens=budget, max_seqs=3)
    bench.add("talk", prompt_of(20, 9), GREEDY)
    assert embed_all(bench, pooling) == expected
    assert len(bench.results["talk"].tokens) == 12
    assert max(bench.model.steps) <= budget


def test_after_prefix_hits(alone: Alone) -> None:
    layout, pooling, expected = alone
    bench = Bench(layout)
    embed_all(bench, pooling)
    assert embed_all(bench, pooling, "-again") == expected
    for name, length in LENGTHS.items():
        # The cache has no hidden states, so a mean computes everything.
        hits = (length - 1) // 16 * 16 if pooling == "last" else 0
        assert bench.results[f"{name}-again"].cached == hits


def test_preempted(alone: Alone) -> None:
    layout, pooling, expected = alone
    blocks = Bench(layout).plan.blocks_held(152, 8)
    bench = Bench(layout, num_blocks=blocks, max_tokens=8, policy="priority")
    for _ in range(3):
        bench.add("last", prompt_of(150, 3), SamplingParams(), pooling=task(pooling), priority=1)
        for _ in range(5):
            bench.step()
        bench.add("first", prompt_of(77, 4), SamplingParams(), pooling=task(pooling))
        bench.run()
        assert bench.results["last"].embedding == expected["long"]
        assert bench.results["first"].embedding == expected["odd"]
    assert bool(bench.engine.stats().preemptions) == bool(bench.plan.groups)
    bench.assert_all_free()


def test_a_vector_leaves_its_prompt_in_the_cache() -> None:
    bench = Bench()
    bench.add("vector", prompt_of(40), SamplingParams(), pooling=task("mean"))
    bench.run()
    bench.add("answer", prompt_of(40), GREEDY)
    bench.run()
    assert bench.results["answer"].cached == 32
    plain = Bench()
    plain.add("answer", prompt_of(40), GREEDY)
    assert bench.results["answer"].tokens == plain.run()["answer"].tokens


def test_a_prompt_may_fill_the_whole_context() -> None:
    bench = Bench(max_model_len=64)
    bench.add("full", prompt_of(64), SamplingParams(), pooling=task())
    assert bench.run()["full"].embedding is not None
    with pytest.raises(RequestError, match="65 tokens, more than max_model_len 64"):
        bench.add("over", prompt_of(65), SamplingParams(), pooling=task())
    with pytest.raises(RequestError, match="no tokens"):
        bench.add("none", [], SamplingParams(), pooling=task())
    stats = bench.engine.stats()
    assert (stats.prompt_tokens, stats.generated_tokens, stats.finished) == (64, 0, {"stop": 1})


def test_aborted_half_way() -> None:
    bench = Bench(max_tokens=16)
    bench.add("a", prompt_of(100), SamplingParams(), pooling=task("mean"))
    bench.step()
    assert bench.engine.abort("a")
    bench.assert_all_free()
    assert bench.results["a"].embedding is None


def test_dimensions_are_cut_before_the_length_is_set() -> None:
    bench = Bench()
    prompt = prompt_of(30)
    for name, own in {
        "raw": task("mean", normalize=False),
        "cut": task("mean", 5),
        "raw cut": task("mean", 5, normalize=False),
        "whole": task("mean", HIDDEN),
        "plain": task("mean"),
    }.items():
        bench.add(name, prompt, SamplingParams(), pooling=own)
    vectors = {name: torch.tensor(result.embedding) for name, result in bench.run().items()}
    torch.testing.assert_close(vectors["raw cut"], vectors["raw"][:5], atol=0, rtol=0)
    cut = vectors["raw"][:5] / vectors["raw"][:5].norm()
    torch.testing.assert_close(vectors["cut"], cut)
    assert torch.equal(vectors["whole"], vectors["plain"])
    assert not math.isclose(float(vectors["raw"].norm()), 1, rel_tol=1e-3)
    with pytest.raises(RequestError, match="dimensions is 13"):
        bench.add("more", prompt, SamplingParams(), pooling=task("mean", HIDDEN + 1))


@pytest.mark.parametrize("cuts", [[40], [1] * 40, [16, 16, 8], [39, 1]])
def test_a_mean_does_not_depend_on_the_cuts(cuts: list[int]) -> None:
    rows = torch.randn(40, 7, generator=torch.Generator().manual_seed(3)) * 1e4
    whole = PoolingState(task("mean", normalize=False))
    whole.add(rows)
    state = PoolingState(task("mean", normalize=False))
    for part in rows.split(cuts):
        state.add(part)
    assert state.result() == whole.result()
    torch.testing.assert_close(torch.tensor(state.result()), rows.mean(0))


def test_a_vector_of_zeros_stays_one() -> None:
    state = PoolingState(task())
    state.add(torch.zeros(1, 4))
    assert state.result() == [0.0] * 4


def test_wrong_params() -> None:
    with pytest.raises(RequestError, match="pooling must be one of last, mean, not 'cls'"):
        PoolingParams(pooling="cls")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="dimensions must be at least 1, not 0"):
        PoolingParams(dimensions=0)
