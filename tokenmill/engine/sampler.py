"""From logits to tokens, for all rows of a step at once.

Each row's result depends on that row alone. Elementwise steps are ones that IEEE 754 rounds exactly;
sums and exponentials run along one row at a time (torch's softmax and cumsum do), so neither the other
rows nor the number of threads can change a bit. Work that no row asks for is skipped.

Order of the steps (that of vLLM): allowed tokens, the answer's form, banned tokens, logit bias,
penalties, temperature, min-p, top-k, top-p. Log-probabilities are those of the model's own
distribution, before any of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.engine.outputs import PositionLogprobs, TokenLogprob
from tokenmill.engine.randomness import uniform
from tokenmill.engine.sampling_state import SamplingState
from tokenmill.engine.top_candidates import top_candidates
from tokenmill.ops.argmax import argmax

WIDTHS = (64, 1024)
"""How many of the likeliest tokens are sorted for a top-k up to that; beyond, all are."""

NUCLEUS_FLOORS = (2.0**-12, 2.0**-16, 2.0**-20, 0.0)
"""Probabilities from which tokens are sorted to find a nucleus, in turn until they hold it."""

NEVER = float("-inf")


@dataclass(frozen=True)
class Sampled:
    """tokens: one a row. logprobs: for rows that asked, the chosen token's and its alternatives'."""

    tokens: list[int]
    logprobs: list[PositionLogprobs | None]


def sample(logits: Tensor, states: Sequence[SamplingState]) -> Sampled:
    """The next token of each row of ``logits``, fp32 [rows, vocab], which is changed in place."""
    if all(state.plain_greedy for state in states):
        return Sampled(argmax(logits).tolist(), [None] * len(states))
    asking = [row for row, state in enumerate(states) if state.params.logprobs is not None]
    raw = torch.log_softmax(_rows(logits, asking), dim=1) if asking else None
    _adjust(logits, states)
    tokens = _choose(logits, states)
    logprobs: list[PositionLogprobs | None] = [None] * len(states)
    if raw is not None:
        counts = [states[row].params.logprobs or 0 for row in asking]
        found = describe_logprobs(raw, [tokens[row] for row in asking], counts)
        for row, entry in zip(asking, found, strict=True):
            logprobs[row] = entry
    return Sampled(tokens, logprobs)


def prompt_logprobs(logits: Tensor, tokens: Sequence[int], count: int) -> list[PositionLogprobs]:
    """For each row of ``logits``, the given token's log-probability and the ``count`` likeliest's."""
    raw = torch.log_softmax(logits, dim=1)
    return describe_logprobs(raw, tokens, [count] * len(tokens))


def describe_logprobs(
    logprobs: Tensor, tokens: Sequence[int], counts: Sequence[int]
) -> list[PositionLogprobs]:
    """The given token of each row, then its ``counts[row]`` likeliest. logprobs: [rows, vocab]."""
    chosen = logprobs.gather(1, torch.tensor(tokens, dtype=torch.int64).unsqueeze(1))
    values: list[float] = chosen.squeeze(1).tolist()
    ranks: list[int] = ((logprobs > chosen).sum(dim=1) + 1).tolist()
    entries = [
        (TokenLogprob(token, value, rank),)
        for token, value, rank in zip(tokens, values, ranks, strict=True)
    ]
    result: list[PositionLogprobs] = list(entries)
    for count in set(counts) - {0}:
        # Rows that ask for equally many go together: how equal values are ordered may depend on k.
        rows = [row for row, wanted in enumerate(counts) if wanted == count]
        top_values, top_tokens = top_candidates(_rows(logprobs, rows), count)
        for row, row_values, row_tokens in zip(
            rows, top_values.tolist(), top_tokens.tolist(), strict=True
        ):
            ranked = zip(row_tokens, row_values, strict=True)
            result[row] += tuple(
                TokenLogprob(token, value, rank) for rank, (token, value) in enumerate(ranked, 1)
            )
    return result


def _rows(logits: Tensor, rows: Sequence[int]) -> Tensor:
    if len(rows) == logits.shape[0]:
        return logits
    return logits.index_select(0, torch.tensor(rows))


def _cells(rows: Sequence[int], ids: Sequence[array[int]], vocab: int) -> Tensor:
    """Flat indices of each row's tokens."""
    starts = torch.tensor(rows, dtype=torch.int64) * vocab
    lengths = torch.tensor([len(tokens) for tokens in ids])
    flat = torch.cat([torch.frombuffer(tokens, dtype=torch.int64) for tokens in ids])
    return flat + starts.repeat_interleave(lengths)


def _adjust(logits: Tensor, states: Sequence[SamplingState]) -> None:
    """Everything that changes logits before the temperature does, in place."""
    vocab = logits.shape[1]
    flat = logits.view(-1)

    def gather(ids_of: Callable[[SamplingState], array[int]]) -> tuple[list[int], list[array[int]]]:
        found = [(row, ids) for row, state in enumerate(states) if (ids := ids_of(state))]
        return [row for row, _ in found], [ids for _, ids in found]

    rows, ids = gather(lambda state: state.allowed_ids)
    if rows:
        cells = _cells(rows, ids, vocab)
        kept = flat[cells]
        logits[torch.tensor(rows)] = NEVER
        flat[cells] = kept
    for row, state in enumerate(states):
        mask = state.grammar.mask() if state.grammar is not None else None
        if mask is not None:
            logits[row].masked_fill_(~mask, NEVER)
    rows, ids = gather(SamplingState.banned)
    if rows:
        flat[_cells(rows, ids, vocab)] = NEVER
    rows, ids = gather(lambda state: state.bias_ids)
    if rows:
        biases = [torch.frombuffer(states[row].bias_values, dtype=torch.float32) for row in rows]
        flat[_cells(rows, ids, vocab)] += torch.cat(biases)
    rows, ids = gather(lambda state: state.seen_ids)
    if rows:
        _penalise(flat, _cells(rows, ids, vocab), [states[row] for row in rows])


def _penalise(flat: Tensor, cells: Tensor, states: Sequence[SamplingState]) -> None:
    lengths = torch.tensor([len(state.seen_ids) for state in states])

    def spread(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(lengths)

    counts = torch.cat([torch.frombuffer(state.seen_counts, dtype=torch.float32) for state in states])
    repetition = spread([state.params.repetition_penalty for state in states])
    frequency = spread([state.params.frequency_penalty for state in states])
    presence = spread([state.params.presence_penalty for state in states])
    values = flat[cells]
    values = torch.where(values > 0, values / repetition, values * repetition)
    # Two roundings, whether or not a compiler could fuse them.
    often = frequency * counts
    values = values - often
    values = values - presence * (counts > 0)
    flat[cells] = values


def _choose(logits: Tensor, states: Sequence[SamplingState]) -> list[int]:
    tokens = [0] * len(states)
    greedy = [row for row, state in enumerate(states) if state.params.greedy]
    if greedy:
        for row, token in zip(greedy, argmax(_rows(logits, greedy)).tolist(), strict=True):
            tokens[row] = token
    if len(greedy) < len(states):
        _draw(logits, states, tokens)
    return tokens


def _draw(logits: Tensor, states: Sequence[SamplingState], tokens: list[int]) -> None:
    """Fill in the tokens of rows that are not greedy: each inverts its cumulative distribution.

    How depends on the row's own parameters: rows with top-k go together, over their likeliest tokens;
    others are taken one at a time, which keeps a row of a large vocabulary within the caches.
    """
    vocab = logits.shape[1]
    by_width: dict[int, list[int]] = {}
    for row, state in enumerate(states):
        params = state.params
        if params.greedy:
            continue
        if 0 < params.top_k < vocab:
            width = next((w for w in WIDTHS if params.top_k <= w < vocab), vocab)
            by_width.setdefault(width, []).append(row)
        elif params.top_p < 1:
            tokens[row] = _draw_from_nucleus(logits[row], state)
        else:
            tokens[row] = _draw_from_all(logits[row], state)
    for width, rows in by_width.items():
        chosen = _draw_from_top(_rows(logits, rows), [states[row] for row in rows], width)
        for row, token in zip(rows, chosen, strict=True):
            tokens[row] = token


def _number(state: SamplingState) -> float:
    return uniform(state.seed, state.sample, state.num_output)


def _draw_from_all(row: Tensor, state: SamplingState) -> int:
    """Without top-k and top-p, order doesn't matter: tokens stay in that of the vocabulary."""
    shares = torch.softmax(row / state.params.temperature, dim=0)
    if state.params.min_p > 0:
        shares = torch.where(shares >= state.params.min_p * shares.amax(), shares, 0.0)
    cumulative = shares.cumsum(dim=0, dtype=torch.float64)
    target = cumulative[-1] * _number(state)
    position = torch.searchsorted(cumulative, target, right=True).item()
    return min(int(position), row.shape[0] - 1)


def _draw_from_nucleus(row: Tensor, state: SamplingState) -> int:
    """Top-p without top-k: only tokens that are likely enough to be in the nucleus are sorted."""
    params = state.params
    shares = torch.softmax(row / params.temperature, dim=0)
    floor_by_min_p = params.min_p * shares.amax().item()
    for floor in NUCLEUS_FLOORS:
        complete = floor == 0 or floor_by_min_p >= floor
        indices = (shares >= max(floor, floor_by_min_p)).nonzero().squeeze(1)
        likely = shares[indices]
        # A running sum here too: torch may split a plain one between threads.
        if complete or (len(likely) and likely.cumsum(0, dtype=torch.float64)[-1] > params.top_p):
            break
    if not len(likely):  # no token is allowed
        return 0
    likely, order = likely.sort(descending=True, stable=True)
    cumulative = likely.cumsum(dim=0, dtype=torch.float64)
    limit = params.top_p * (cumulative[-1].item() if complete else 1.0)
    # The nucleus ends with the first token that reaches the limit.
    last = min(int(torch.searchsorted(cumulative, limit).item()), len(cumulative) - 1)
    target = cumulative[last] * _number(state)
    position = min(int(torch.searchsorted(cumulative, target, right=True).item()), last)
    return int(indices[order[position]].item())


def _draw_from_top(logits: Tensor, states: Sequence[SamplingState], width: int) -> list[int]:
    """Top-k, and min-p and top-p among what it leaves, for rows whose top-k is at most ``width``."""
    params = [state.params for state in states]
    if width < logits.shape[1]:
        values, indices = top_candidates(logits, width)
    else:
        values, indices = logits.sort(dim=1, descending=True, stable=True)
    temperatures = torch.tensor([p.temperature for p in params]).unsqueeze(1)
    top_k = torch.tensor([p.top_k for p in params]).unsqueeze(1)
    min_p = torch.tensor([p.min_p for p in params]).unsqueeze(1)
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64).unsqueeze(1)
    numbers = torch.tensor([_number(state) for state in states], dtype=torch.float64).unsqueeze(1)
    shares = torch.softmax(values / temperatures, dim=1)
    passes = (torch.arange(width) < top_k) & (shares >= min_p * shares[:, :1])
    cumulative = torch.where(passes, shares, 0.0).cumsum(dim=1, dtype=torch.float64)
    limit = top_p * cumulative[:, -1:]
    last = torch.searchsorted(cumulative, limit).clamp_max(width - 1)
    target = numbers * cumulative.gather(1, last)
    position = torch.minimum(torch.searchsorted(cumulative, target, right=True), last)
    chosen: list[int] = indices.gather(1, position).squeeze(1).tolist()
    return chosen
