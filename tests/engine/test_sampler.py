"""Against transformers' processors, and row by row against the same rows alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from transformers.generation import logits_process as hf

from tokenmill.engine import sampler
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.engine.sampling_state import SamplingState
from tokenmill.engine.top_candidates import top_candidates
from tokenmill.ops.argmax import argmax

VOCAB = 3001


def logits_of(rows: int, vocab: int = VOCAB, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def state_of(
    prompt: tuple[int, ...] = (1, 2, 3), output: tuple[int, ...] = (), **kwargs: Any
) -> SamplingState:
    extra = {name: kwargs.pop(name) for name in ("end_ids", "bad_words") if name in kwargs}
    seed = kwargs.get("seed", 1)
    state = SamplingState(
        SamplingParams(**kwargs),
        prompt,
        seed=seed,
        sample=0,
        **{"end_ids": (), "bad_words": (), **extra},
    )
    for token in output:
        state.append(token)
    return state


def draw_many(logits: torch.Tensor, count: int, **kwargs: Any) -> Counter[int]:
    """What ``count`` seeds draw from one row of logits."""
    states = [state_of(seed=seed, **kwargs) for seed in range(count)]
    return Counter(sampler.sample(logits.repeat(count, 1), states).tokens)


def assert_drawn_from(drawn: Counter[int], probabilities: torch.Tensor) -> None:
    """Only possible tokens, each about as often as it should be."""
    count = sum(drawn.values())
    assert all(probabilities[token] > 0 for token in drawn)
    expected = probabilities * count
    likely = (expected >= 5).nonzero().flatten().tolist()
    assert likely
    observed = torch.tensor([drawn[token] for token in likely], dtype=torch.float64)
    chi2 = ((observed - expected[likely]) ** 2 / expected[likely]).sum()
    # Mean n, standard deviation sqrt(2n): five of them is far out.
    assert chi2 < len(likely) + 5 * (2 * len(likely)) ** 0.5


WARPERS: list[tuple[dict[str, Any], list[Any]]] = [
    ({}, []),
    ({"temperature": 0.7}, [hf.TemperatureLogitsWarper(0.7)]),
    ({"top_k": 5}, [hf.TopKLogitsWarper(5)]),
    ({"top_k": 100, "temperature": 2.0}, [hf.TemperatureLogitsWarper(2.0), hf.TopKLogitsWarper(100)]),
    ({"top_k": 2000, "temperature": 2.0}, [hf.TemperatureLogitsWarper(2.0), hf.TopKLogitsWarper(2000)]),
    ({"top_p": 0.4}, [hf.TopPLogitsWarper(0.4)]),
    ({"top_p": 0.97, "temperature": 3.0}, [hf.TemperatureLogitsWarper(3.0), hf.TopPLogitsWarper(0.97)]),
    ({"min_p": 0.1}, [hf.MinPLogitsWarper(0.1)]),
    ({"min_p": 0.01, "temperature": 3.0}, [hf.TemperatureLogitsWarper(3.0), hf.MinPLogitsWarper(0.01)]),
    (
        {"min_p": 0.02, "top_k": 40, "top_p": 0.8, "temperature": 1.5},
        [
            hf.TemperatureLogitsWarper(1.5),
            hf.MinPLogitsWarper(0.02),
            hf.TopKLogitsWarper(40),
            hf.TopPLogitsWarper(0.8),
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("params", "warpers"), WARPERS)
def test_draws_from_the_distribution_of_transformers(
    params: dict[str, Any], warpers: list[Any]
) -> None:
    logits = logits_of(1)
    warped = logits.clone()
    for warper in warpers:
        warped = warper(torch.tensor([[1]]), warped)
    drawn = draw_many(logits, 1500, **params)
    assert_drawn_from(drawn, torch.softmax(warped[0].double(), 0))


def test_filters_keep_exactly_the_tokens_of_transformers() -> None:
    # A flat distribution, so that every token that may be drawn is drawn.
    logits = logits_of(1, 60, spread=0.4)
    for params, warper in (
        ({"top_k": 7}, hf.TopKLogitsWarper(7)),
        ({"top_p": 0.3}, hf.TopPLogitsWarper(0.3)),
        ({"min_p": 0.6}, hf.MinPLogitsWarper(0.6)),
    ):
        kept = set(
            warper(torch.tensor([[1]]), logits.clone())[0].isfinite().nonzero().flatten().tolist()
        )
        assert set(draw_many(logits, 1500, **params)) == kept


def test_repetition_penalty_of_transformers() -> None:
    logits = logits_of(1)
    seen = [4, 9, 9, 17]
    expected = hf.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([seen]), logits.clone())
    state = state_of((4, 9), (9, 17), temperature=0.0, repetition_penalty=1.3, logprobs=0)
    sampler._adjust(logits, [state])
    assert torch.equal(logits, expected)


def test_presence_and_frequency_penalties_count_the_answer_only() -> None:
    logits = logits_of(2)
    before = logits.clone()
    penalised = state_of((4, 9), (9, 17, 17, 17), presence_penalty=0.5, frequency_penalty=0.25)
    sampler._adjust(logits, [state_of(), penalised])
    assert torch.equal(logits[0], before[0])
    change = {9: 0.5 + 0.25, 17: 0.5 + 3 * 0.25}
    for token, less in change.items():
        assert logits[1, token].item() == pytest.approx(before[1, token].item() - less, abs=1e-6)
        before[1, token] = logits[1, token]
    assert torch.equal(logits[1], before[1])


def test_logit_bias_bans_and_allowed_tokens() -> None:
    logits = logits_of(1).repeat(5, 1)
    best = logits[0].topk(4).indices.tolist()
    states = [
        state_of(temperature=0.0, logit_bias={7: 100.0}),
        state_of(temperature=0.0, allowed_token_ids=[11, best[2], 30]),
        state_of(temperature=0.0, min_tokens=2, end_ids=(best[0], best[1])),
        state_of((), (5, 6), temperature=0.0, bad_words=((5, 6, best[0]), (best[1],), (6, best[2]))),
        state_of(
            (), (6,), temperature=0.0, bad_words=((5, 6, best[0]),), min_tokens=1, end_ids=(best[0],)
        ),
    ]
    assert sampler.sample(logits, states).tokens == [7, best[2], best[2], best[3], best[0]]


def test_bad_words_of_transformers() -> None:
    words = [[5], [6, 7], [8, 9, 10]]
    output = (3, 8, 9)
    logits = logits_of(1)
    processor = hf.NoBadWordsLogitsProcessor(words, eos_token_id=None)
    expected = processor(torch.tensor([output]), logits.clone())
    sampler._adjust(logits, [state_of((), output, bad_words=tuple(map(tuple, words)))])
    assert torch.equal(logits, expected)


def mixed_states() -> list[SamplingState]:
    return [
        state_of(temperature=0.0),
        state_of(seed=3, logprobs=5),
        state_of(seed=4, top_k=10, logprobs=0),
        state_of(seed=5, top_p=0.9, temperature=1.7),
        state_of(seed=6, min_p=0.01, temperature=4.0),
        state_of(seed=7, temperature=50.0),
        state_of((5, 6), (7,), seed=8, repetition_penalty=1.5, frequency_penalty=0.1, logprobs=20),
        state_of(temperature=0.0, logprobs=2, logit_bias={5: 9.0}),
        state_of(seed=9, allowed_token_ids=[4, 5, 6, 70], temperature=2.0),
        state_of(seed=10, top_k=1500, top_p=0.99, temperature=9.0),
    ]


@pytest.mark.parametrize("vocab", [50, 1000, VOCAB, 50_001])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_the_same_alone_and_among_others(vocab: int, threads: int) -> None:
    count = len(mixed_states())
    logits = logits_of(count, vocab)
    if vocab == 50:
        states = [s for s in mixed_states() if not s.params.allowed_token_ids]
    else:
        states = mixed_states()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = sampler.sample(logits[: len(states)].clone(), states)
        torch.set_num_threads(1)
        order = list(reversed(range(len(states))))
        shuffled = sampler.sample(logits[order].clone(), [states[row] for row in order])
        for row, state in enumerate(states):
            alone = sampler.sample(logits[row : row + 1].clone(), [state])
            assert alone.tokens[0] == together.tokens[row] == shuffled.tokens[order.index(row)]
            assert alone.logprobs[0] == together.logprobs[row] == shuffled.logprobs[order.index(row)]
    finally:
        torch.set_num_threads(before)


def test_seeds_repeat_and_differ() -> None:
    logits = logits_of(1, spread=1.0)

    def draw(seed: int, output: tuple[int, ...] = (), sample: int = 0) -> int:
        state = SamplingState(
            SamplingParams(), (1,), end_ids=(), bad_words=(), seed=seed, sample=sample
        )
        for token in output:
            state.append(token)
        return sampler.sample(logits.clone(), [state]).tokens[0]

    assert draw(1) == draw(1)
    assert draw(-1) == draw(-1)
    assert len({draw(seed) for seed in range(20)}) > 10
    assert len({draw(1, (9,) * n) for n in range(20)}) > 10
    assert len({draw(1, sample=n) for n in range(20)}) > 10


def test_logprobs_are_those_of_the_model_with_ranks() -> None:
    logits = logits_of(2)
    expected = torch.log_softmax(logits, 1)
    bias = {int(expected[0].topk(3).indices[2]): 100.0}
    states = [state_of(temperature=0.0, logprobs=2, logit_bias=bias), state_of(temperature=0.0)]
    result = sampler.sample(logits.clone(), states)
    assert result.logprobs[1] is None
    chosen, *top = result.logprobs[0] or ()
    values, tokens = expected[0].topk(3)
    assert chosen == (tokens[2].item(), values[2].item(), 3)
    assert top == [(tokens[i].item(), values[i].item(), i + 1) for i in range(2)]


def test_prompt_logprobs() -> None:
    logits = logits_of(3)
    expected = torch.log_softmax(logits, 1)
    entries = sampler.prompt_logprobs(logits, [5, 6, 7], 1)
    for row, (entry, token) in enumerate(zip(entries, (5, 6, 7), strict=True)):
        assert entry[0].token_id == token
        assert entry[0].logprob == expected[row, token].item()
        assert entry[1].token_id == int(expected[row].argmax())


@pytest.mark.parametrize("native", [True, False])
def test_argmax_passes_over_what_is_no_number(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr("tokenmill.ops.argmax._native", lambda: None)
    never, nan, ever = float("-inf"), float("nan"), float("inf")
    logits = torch.full((5, 3000), -1.0)
    logits[0] = never
    logits[1] = nan
    logits[2, 2000:2002] = ever
    logits[3, :2999] = nan
    logits[4] = torch.where(torch.arange(3000) == 1500, never, nan)
    assert argmax(logits).tolist()[2:4] == [2000, 2999]
    assert all(0 <= token < 3000 for token in argmax(logits).tolist())
    assert argmax(logits[2:3, ::2]).tolist() == [1000]


@pytest.mark.parametrize("vocab", [1, 100, 300, 4096, 10_007])
def test_argmax_and_top_candidates_find_what_torch_finds(vocab: int) -> None:
    logits = logits_of(5, vocab, seed=vocab)
    assert argmax(logits).tolist() == logits.argmax(1).tolist()
    ties = (logits * 2).round()
    ties[:, -1] = ties.max() if vocab == 300 else ties[:, -1]
    first = [row.index(max(row)) for row in ties.tolist()]
    assert argmax(ties).tolist() == first
    for k in (1, 20, 64, 1024):
        values, indices = top_candidates(logits, k)
        expected = logits.topk(min(k, vocab), dim=1)
        assert torch.equal(values, expected.values)
        assert torch.equal(indices, expected.indices)


def test_nothing_left_is_no_crash() -> None:
    """Bans and allowed tokens that leave nothing: some token comes out, the others' rows are right."""
    logits = logits_of(2)
    states = [
        state_of(allowed_token_ids=[5], bad_words=((5,),)),
        state_of(temperature=0.0),
    ]
    tokens = sampler.sample(logits.clone(), states).tokens
    assert 0 <= tokens[0] < VOCAB
    assert tokens[1] == int(logits[1].argmax())
