"""From logits to tokens, for all rows of a step at once.

Each row's result depends on that row alone. Elementwise steps are ones that IEEE 754 rounds exactly;
sums and exponentials run along one row at a time (torch's softmax and cumsum do), so neither the other
rows nor the number of threads can change a bit. Work that no row asks for is skipped.

Order of the steps (that of vLLM): allowed tokens, banned tokens, logit bias, penalties, temperature,
min-p, top-k, top-p. Log-probabilities are those of the model's own distribution, before any of them.
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
from tokenmill.engine.top_candidates import argmax, top_candidates

WIDTHS = (64, 1024, 8192)
"""How many of the likeliest tokens are looked at, in turn, before the whole vocabulary is sorted."""

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
    """Fill in the tokens of rows that are not greedy.

    Each inverts the cumulative distribution over its sorted, filtered tokens. The likeliest few usually
    decide; a row whose number falls beyond them, or whose filters reach further, looks at more. Which
    width decides depends on the row alone.
    """
    vocab = logits.shape[1]
    left = [row for row, state in enumerate(states) if not state.params.greedy]
    numbers = {row: _number(states[row]) for row in left}
    best_shares: dict[int, float] = {}
    for width in (*(w for w in WIDTHS if w < vocab), vocab):
        some = _rows(logits, left)
        if width < vocab:
            values, indices = top_candidates(some, width)
        else:
            values, indices = some.sort(dim=1, descending=True, stable=True)
        known = _Candidates(values, [states[row] for row in left], vocab)
        measured = [left[index] for index in known.open.nonzero().squeeze(1).tolist()]
        for row in measured:
            if row not in best_shares:
                best_shares[row] = _best_share(logits[row], states[row].params.temperature)
        known.weigh([best_shares[row] for row in measured])
        positions = known.invert([numbers[row] for row in left])
        chosen = indices.gather(1, positions.clamp_min(0).unsqueeze(1)).squeeze(1).tolist()
        undecided = []
        for row, position, token in zip(left, positions.tolist(), chosen, strict=True):
            if position < 0:
                undecided.append(row)
            else:
                tokens[row] = token
        left = undecided
        if not left:
            break


def _number(state: SamplingState) -> float:
    return uniform(state.seed, state.sample, state.num_output)


def _best_share(row: Tensor, temperature: float) -> float:
    """Probability of the likeliest token. One row at a time stays within the processor's caches."""
    return torch.softmax(row / temperature, dim=0).amax().item()


class _Candidates:
    """The likeliest tokens of some rows, and how likely each is after top-k and min-p.

    logits: [rows, width], descending. A row is complete if no token beyond ``width`` passes its
    filters, so that its own candidates say everything; it is open if no filter but top-p can cut, so
    that what lies beyond is the rest of the vocabulary.
    """

    def __init__(self, logits: Tensor, states: Sequence[SamplingState], vocab: int) -> None:
        width = logits.shape[1]
        params = [state.params for state in states]
        temperatures = torch.tensor([p.temperature for p in params]).unsqueeze(1)
        top_k = torch.tensor([p.top_k if p.top_k > 0 else vocab for p in params])
        min_p = torch.tensor([p.min_p for p in params], dtype=torch.float64)
        self.top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64)
        # Within a row, the candidates' shares relative to the first don't depend on what lies beyond.
        shares = torch.softmax((logits / temperatures).double(), dim=1)
        passes = shares / shares[:, :1] >= min_p.unsqueeze(1)
        passes &= torch.arange(width) < top_k.unsqueeze(1)
        self.complete = (top_k <= width) | ~passes[:, -1] | (logits[:, -1] == NEVER) | (width == vocab)
        self.open = ~self.complete & (min_p == 0) & (top_k >= vocab)
        self.shares = torch.where(passes, shares, 0.0)
        # A running sum, because torch may split a plain one between threads.
        self.totals = self.shares.cumsum(dim=1)[:, -1].clone()

    def weigh(self, best_shares: Sequence[float]) -> None:
        """Set open rows against the whole vocabulary, given each one's highest probability."""
        rows = self.open.nonzero().squeeze(1)
        if len(rows):
            factor = torch.tensor(best_shares, dtype=torch.float64) / self.shares[rows, 0]
            self.shares[rows] *= factor.unsqueeze(1)
            self.totals[rows] = 1.0

    def invert(self, numbers: Sequence[float]) -> Tensor:
        """Which candidate each row's number in [0, 1) falls on; -1 if these candidates can't tell."""
        cumulative = self.shares.cumsum(dim=1)
        before = torch.cat(
            (torch.zeros(len(numbers), 1, dtype=torch.float64), cumulative[:, :-1]), dim=1
        )
        limit = self.top_p * self.totals
        nucleus = (before < limit.unsqueeze(1)).sum(dim=1).clamp_min(1)
        mass = cumulative.gather(1, (nucleus - 1).unsqueeze(1)).squeeze(1)
        everything = self.open & (self.top_p == 1)
        mass = torch.where(everything, self.totals, mass)
        target = torch.tensor(numbers, dtype=torch.float64) * mass
        position = (cumulative <= target.unsqueeze(1)).sum(dim=1)
        position = torch.minimum(position, nucleus - 1)
        # An open row knows its nucleus, or where its number falls, only if that is within reach.
        reach = cumulative[:, -1]
        within = torch.where(everything, reach > target, reach >= limit)
        return torch.where(self.complete | (self.open & within), position, -1)
