"""What comes out of the engine: token-level outputs for the front, vLLM-shaped outputs for callers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tokenmill.errors import TokenmillError

FinishReason = Literal["stop", "length", "abort"]


class TokenLogprob(NamedTuple):
    """One candidate at a position. rank: 1 is the most likely."""

    token_id: int
    logprob: float
    rank: int


PositionLogprobs = tuple[TokenLogprob, ...]
"""The chosen (or given) token first, then the most likely ones in order."""


@dataclass(slots=True)
class RequestMetrics:
    """Seconds on the monotonic clock, except time_in_queue, which is a duration."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    time_in_queue: float | None = None


@dataclass(slots=True)
class TokenOutput:
    """What one step added to one request.

    logprobs: one entry for each new token, or None. prompt_logprobs: with the first token, one entry
    for each token of the prompt (None for the first). stop_reason: the stop token id, if one of
    ``stop_token_ids`` ended the answer. interval_s: since the answer's last token; None for the first.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None
    prompt_logprobs: list[PositionLogprobs | None] | None
    finish_reason: FinishReason | None
    stop_reason: int | None
    num_cached_tokens: int
    metrics: RequestMetrics
    interval_s: float | None = None


@dataclass(slots=True)
class PooledOutput:
    """The vector of one request's prompt, which ends the request."""

    request_id: str
    embedding: list[float]
    num_prompt_tokens: int
    num_cached_tokens: int
    metrics: RequestMetrics


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A vector: fp32 values."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers there are."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """The vector of one prompt."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int
    metrics: RequestMetrics
    finished: bool = True


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """How alike two texts are: the cosine of their vectors, -1 to 1."""

    score: float


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    """The score of one pair. prompt_token_ids: of both texts, one after the other."""

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool = True


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of a token, its rank (1 is the most likely) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One answer. logprobs: for each token, candidates by token id.

    stop_reason: the stop text or token id that ended the answer; None for the end of the sequence.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Whether nothing will be added."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The answers to one prompt, so far.

    num_cached_tokens: tokens of the prompt that the prefix cache still held.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = None
    num_cached_tokens: int | None = None


@dataclass(frozen=True)
class RequestFailed:
    """One request was refused, or can't go on; others do."""

    request_id: str
    error: TokenmillError


@dataclass(frozen=True)
class EngineStats:
    """A moment of the engine, and totals since it started.

    running, waiting: answers. max_running: most that may run at once. cache_usage: share of the block
    pool in use. prefix_queries, prefix_hits: prompt tokens that were looked up, and found, in the
    prefix cache.
    """

    running: int = 0
    waiting: int = 0
    max_running: int = 0
    cache_usage: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    finished: dict[str, int] = field(default_factory=dict)
