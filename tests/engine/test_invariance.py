"""A result belongs to its request: the same bits alone, together, in chunks, after hits, preempted."""

from __future__ import annotations

import random

import pytest

from tests.engine.fake_model import LAYOUTS, Bench, Result, prompt_of
from tokenmill.engine.sampling_params import SamplingParams

REQUESTS = {
    "greedy": (prompt_of(50, 1), SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)),
    "long": (prompt_of(150, 2), SamplingParams(temperature=0.0, max_tokens=30, logprobs=3)),
    "seeded": (
        prompt_of(33, 3),
        SamplingParams(temperature=0.9, top_p=0.8, seed=5, max_tokens=40, logprobs=0),
    ),
    "penalised": (
        prompt_of(20, 4),
        SamplingParams(
            temperature=1.3, top_k=30, repetition_penalty=1.2, presence_penalty=0.3, max_tokens=40
        ),
    ),
    "prompt": (prompt_of(40, 5), SamplingParams(temperature=0.0, max_tokens=10, prompt_logprobs=2)),
    "one": (prompt_of(1, 6), SamplingParams(temperature=0.7, min_p=0.05, max_tokens=64, min_tokens=30)),
    "block": (prompt_of(48, 7), SamplingParams(temperature=0.0, max_tokens=20, logit_bias={9: 3.0})),
}


def essence(result: Result) -> tuple[object, ...]:
    return (
        result.tokens, result.logprobs, result.prompt_logprobs, result.reason, result.stop_reason,
    )  # fmt: skip


def run_all(bench: Bench, names: list[str]) -> dict[str, tuple[object, ...]]:
    for name in names:
        prompt, params = REQUESTS[name]
        bench.add(name, prompt, params)
    results = bench.run()
    bench.assert_all_free()
    return {name: essence(results[name]) for name in names}


@pytest.fixture(scope="module", params=LAYOUTS)
def alone(request: pytest.FixtureRequest) -> tuple[str, dict[str, tuple[object, ...]]]:
    """Each request by itself, in one chunk, in an engine without prefix caching."""
    layout = request.param
    results = {}
    for name in REQUESTS:
        bench = Bench(layout, max_tokens=256, spare_logits=256, prefix_caching=False)
        results |= run_all(bench, [name])
    return layout, results


Alone = tuple[str, dict[str, tuple[object, ...]]]


def test_results_differ_between_requests(alone: Alone) -> None:
    tokens = [tuple(result[0]) for result in alone[1].values()]
    assert len(set(tokens)) == len(tokens)
    assert all(len(set(t)) > 3 for t in tokens)


def test_together(alone: Alone) -> None:
    layout, expected = alone
    assert run_all(Bench(layout), list(REQUESTS)) == expected


@pytest.mark.parametrize("budget", [3, 8, 17])
def test_in_tiny_chunks(alone: Alone, budget: int) -> None:
    layout, expected = alone
    bench = Bench(layout, max_tokens=budget, max_seqs=3, spare_logits=2)
    assert run_all(bench, list(REQUESTS)) == expected
    assert max(bench.model.steps) <= budget


def test_after_prefix_hits(alone: Alone) -> None:
    layout, expected = alone
    bench = Bench(layout)
    run_all(bench, list(REQUESTS))
    again = run_all(bench, list(reversed(REQUESTS)))
    assert again == expected
    for name, (prompt, params) in REQUESTS.items():
        hits = 0 if params.prompt_logprobs is not None else (len(prompt) - 1) // 16 * 16
        assert bench.results[name].cached == hits


def test_preempted(alone: Alone) -> None:
    layout, expected = alone
    # The longest request just fits; the short ones start first, and grow until the pool is full.
    blocks = Bench(layout).plan.blocks_held(180, 16)
    bench = Bench(layout, num_blocks=blocks, max_tokens=16)
    names = sorted(REQUESTS, key=lambda name: len(REQUESTS[name][0]))
    assert run_all(bench, names) == expected
    # Recurrent state does not grow: without attention there is nothing to run out of.
    assert bool(bench.engine.stats().preemptions) == bool(bench.plan.groups)


@pytest.mark.parametrize("layout", ["recurrent", "hybrid"])
@pytest.mark.parametrize("shared", [64, 79, 100, 200, 333])
def test_any_shared_beginning_is_found(layout: str, shared: int) -> None:
    """From 64 tokens on, wherever texts part; and exactly there once two of them have parted there."""
    beginning = prompt_of(400, 20)[:shared]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    texts = {name: beginning + prompt_of(100, seed) for name, seed in (("a", 21), ("b", 22), ("c", 23))}
    bench = Bench(layout)
    for name, text in texts.items():
        bench.add(name, text, params)
        bench.run()
    found = {name: bench.results[name].cached for name in texts}
    assert found["a"] == 0
    assert max(64, shared * 2 // 3 - 16) <= found["b"] <= shared
    assert found["c"] == shared // 16 * 16
    for name, text in texts.items():
        fresh = Bench(layout, prefix_caching=False)
        fresh.add(name, text, params)
        assert fresh.run()[name].tokens == bench.results[name].tokens


@pytest.mark.parametrize("layout", ["recurrent", "hybrid"])
def test_the_next_turn_goes_on_from_the_end_of_the_last_answer(layout: str) -> None:
    bench = Bench(layout)
    params = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    text = prompt_of(70, 30)
    bench.add("first", text, params)
    text = text + bench.run()["first"].tokens + prompt_of(20, 31)
    bench.add("second", text, params)
    # The last token of an answer is never read, so 119 tokens are known.
    assert bench.run()["second"].cached == 112


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens(alone: Alone, seed: int) -> None:
    """Random arrivals, repeats, aborts, budgets and pool sizes."""
    layout, expected = alone
    rng = random.Random(seed)
    budget = rng.choice([4, 16, 40])
    least = Bench(layout).plan.blocks_held(180, budget)
    bench = Bench(
        layout,
        num_blocks=rng.randint(least, 2 * least),
        num_slots=rng.randint(2, 12),
        max_tokens=budget,
        max_seqs=rng.choice([2, 4]),
        policy=rng.choice(["fcfs", "priority"]),
    )
    names: dict[str, str] = {}
    aborted = set()
    for number in range(25):
        name = rng.choice(list(REQUESTS))
        names[f"{name}-{number}"] = name
        prompt, params = REQUESTS[name]
        bench.add(f"{name}-{number}", prompt, params, priority=rng.randint(0, 2))
        for _ in range(rng.randint(0, 12)):
            if bench.engine.has_work:
                bench.step()
        if rng.random() < 0.3:
            victim = rng.choice(list(names))
            if bench.engine.abort(victim):
                aborted.add(victim)
    bench.run()
    bench.assert_all_free()
    for unique, name in names.items():
        if unique in aborted:
            length = len(bench.results[unique].tokens)
            assert bench.results[unique].tokens == expected[name][0][:length]
        else:
            assert essence(bench.results[unique]) == expected[name]
