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

WIDTHS = (64, 1024)
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
    random = [row for row, state in enumerate(states) if not state.params.greedy]
    if random:
        chosen = _draw(_rows(logits, random), [states[row] for row in random])
        for row, token in zip(random, chosen, strict=True):
            tokens[row] = token
    return tokens


def _draw(logits: Tensor, states: Sequence[SamplingState]) -> list[int]:
    """One token of each row by inverting the cumulative distribution over the sorted, filtered tokens.

    The likeliest few usually decide; a row whose number falls beyond them, or whose filters reach
    further, looks at more. Which width decides depends on the row alone.
    """
    vocab = logits.shape[1]
    temperatures = torch.tensor([state.params.temperature for state in states])
    scaled = logits / temperatures.unsqueeze(1)
    numbers = [uniform(state.seed, state.sample, state.num_output) for state in states]
    tokens = [0] * len(states)
    left = list(range(len(states)))
    for width in (*(w for w in WIDTHS if w < vocab), vocab):
        some = _rows(scaled, left)
        if width < vocab:
            values, indices = top_candidates(some, width)
        else:
            values, indices = some.sort(dim=1, descending=True, stable=True)
        known = _Candidates(values, [states[row] for row in left], vocab)
        known.weigh(some)
        positions = known.invert([numbers[row] for row in left])
        found = indices.gather(1, torch.tensor(positions).clamp_min(0).unsqueeze(1)).squeeze(1).tolist()
        undecided = []
        for row, position, token in zip(left, positions, found, strict=True):
            if position < 0:
                undecided.append(row)
            else:
                tokens[row] = token
        left = undecided
        if not left:
            break
    return tokens


class _Candidates:
    """The likeliest tokens of some rows, and how likely each is after top-k and min-p.

    values: scaled logits [rows, width], descending. A row is complete if no token beyond ``width``
    passes its filters; only then does the share of its own candidates say everything.
    """

    def __init__(self, values: Tensor, states: Sequence[SamplingState], vocab: int) -> None:
        self.values = values
        width = values.shape[1]
        top_k = torch.tensor([s.params.top_k if s.params.top_k > 0 else vocab for s in states])
        self.top_p = torch.tensor([s.params.top_p for s in states], dtype=torch.float64)
        self.min_p = torch.tensor([s.params.min_p for s in states], dtype=torch.float64)
        # Within a row, candidates' shares relative to the first do not depend on what lies beyond.
        shares = torch.softmax(values.double(), dim=1)
        relative = shares / shares[:, :1]
        passes = relative >= self.min_p.unsqueeze(1)
        passes &= torch.arange(width) < top_k.unsqueeze(1)
        self.complete = (top_k <= width) | ~passes[:, -1] | (values[:, -1] == NEVER) | (width == vocab)
        # Where neither filter cuts, what lies beyond is the rest of the vocabulary.
        self.measurable = ~self.complete & (self.min_p == 0) & (top_k >= vocab)
        self.shares = torch.where(passes, shares, 0.0)
        # A running sum, because torch may split a plain one between threads.
        self.totals = self.shares.cumsum(dim=1)[:, -1].clone()

    def weigh(self, scaled: Tensor) -> None:
        """Measure incomplete rows against the whole vocabulary, ``scaled`` [rows, vocab]."""
        rows = self.measurable.nonzero().squeeze(1)
        if len(rows):
            everything = torch.softmax(scaled.index_select(0, rows), dim=1).amax(dim=1).double()
            factor = everything / self.shares[rows, 0]
            self.shares[rows] *= factor.unsqueeze(1)
            self.totals[rows] = 1.0

    def invert(self, numbers: Sequence[float]) -> list[int]:
        """Which candidate each row's number in [0, 1) falls on; -1 if these candidates can't tell."""
        cumulative = self.shares.cumsum(dim=1)
        before = torch.cat(
            (torch.zeros(len(numbers), 1, dtype=torch.float64), cumulative[:, :-1]), dim=1
        )
        limit = (self.top_p * self.totals).unsqueeze(1)
        nucleus = (before < limit).sum(dim=1, keepdim=True).clamp_min(1)
        mass = cumulative.gather(1, nucleus - 1).squeeze(1)
        inside = self.complete | (cumulative[:, -1] >= limit.squeeze(1))
        mass = torch.where(~self.complete & (self.top_p == 1), self.totals, mass)
        target = (torch.tensor(numbers, dtype=torch.float64) * mass).unsqueeze(1)
        position = (cumulative <= target).sum(dim=1)
        known = torch.where(
            self.complete | (self.top_p < 1), inside, cumulative[:, -1] > target.squeeze(1)
        )
        known &= self.complete | self.measurable
        position = torch.minimum(position, nucleus.squeeze(1) - 1)
        result: list[int] = torch.where(known, position, -1).tolist()
        return result
