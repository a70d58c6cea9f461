"""One answer being made, from the engine's point of view."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tokenmill.engine.outputs import PositionLogprobs, RequestMetrics
from tokenmill.engine.pooling import PoolingState, PoolingTask
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.engine.sampling_state import SamplingState

if TYPE_CHECKING:
    from tokenmill.cache.manager import RequestBlocks
    from tokenmill.engine.grammars import AnswerGrammar


@dataclass(frozen=True)
class EngineRequest:
    """What the front asks of the engine: one answer to one prompt, in token ids.

    params: n is ignored; the front makes n requests. eos_ids: end the answer unless ignore_eos.
    bad_words: token ids of each spelling. sample: which of n answers. seed: of the random numbers.
    leader: the request whose prompt is the same and is computed first, if any. cache_extra: what the
    cached prompt depends on besides its tokens (salt, adapter). grammar: the form of the answer.
    pooling: instead of an answer, make one
    vector of the prompt; params then says nothing.
    """

    request_id: str
    prompt: Sequence[int]
    params: SamplingParams
    seed: int
    eos_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    sample: int = 0
    priority: int = 0
    leader: str | None = None
    cache_extra: Hashable = None
    grammar: AnswerGrammar | None = None
    pooling: PoolingTask | None = None


class Status(Enum):
    """Where a request is."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


@dataclass(eq=False, slots=True)
class Request:
    """A request and its progress.

    tokens: prompt and answer. num_computed: tokens whose keys and values are stored.
    max_total: prompt and longest answer. order: (priority, arrival), the smallest goes first.
    prefilled: whether its prompt has been computed once.
    prompt_logprobs: of the prompt's tokens so far, if asked for. pooling: what is known of the vector,
    if one is to be made.
    """

    source: EngineRequest
    order: tuple[int, int]
    max_total: int
    tokens: array[int]
    blocks: RequestBlocks
    sampling: SamplingState
    stop_ids: frozenset[int]
    metrics: RequestMetrics
    leader: Request | None = None
    status: Status = Status.WAITING
    num_computed: int = 0
    num_cached: int = -1
    prefilled: bool = False
    prompt_logprobs: list[PositionLogprobs | None] = field(default_factory=list)
    pooling: PoolingState | None = None

    @property
    def request_id(self) -> str:
        """Its name."""
        return self.source.request_id

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.source.prompt)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether logits of prompt tokens are still needed."""
        return self.source.params.prompt_logprobs is not None and not self.prefilled

    @property
    def needs_every_token(self) -> bool:
        """Whether something is made of every token of the prompt, so that none may be skipped."""
        pooling = self.source.pooling
        return self.wants_prompt_logprobs or (pooling is not None and pooling.needs_every_token)

    def start_over(self) -> None:
        """Everything will be computed again."""
        self.num_computed = 0
        if self.wants_prompt_logprobs:
            self.prompt_logprobs.clear()
        if self.pooling is not None:
            self.pooling.restart()
