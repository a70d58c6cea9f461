"""The loop's body: requests in, steps, token ids out. Knows no text, no HTTP and no model family."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from dataclasses import dataclass

import torch

from tokenmill.cache.manager import CacheManager
from tokenmill.cache.pages import give_back_pages
from tokenmill.engine import sampler
from tokenmill.engine.outputs import (
    EngineStats,
    FinishReason,
    PooledOutput,
    PositionLogprobs,
    RequestFailed,
    RequestMetrics,
    TokenOutput,
)
from tokenmill.engine.pooling import PoolingState
from tokenmill.engine.request import EngineRequest, Request
from tokenmill.engine.runner import Rows, Runner, StepResult
from tokenmill.engine.sampling_state import SamplingState
from tokenmill.engine.scheduler import Scheduler
from tokenmill.errors import RequestError


@dataclass(frozen=True)
class EngineLimits:
    """vocab_size: token ids are below it. max_model_len: longest prompt plus answer.
    hidden_size: numbers of a prompt's vector.
    """

    vocab_size: int
    max_model_len: int
    hidden_size: int


class Engine:
    """Advances requests step by step. Not thread-safe: one thread adds, steps and aborts."""

    def __init__(
        self, runner: Runner, scheduler: Scheduler, cache: CacheManager, limits: EngineLimits
    ) -> None:
        self.limits = limits
        self.runner = runner
        self._scheduler = scheduler
        self._cache = cache
        self._requests: dict[str, Request] = {}
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._steps = 0
        self._finished: Counter[str] = Counter()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Requests that have not ended."""
        return tuple(self._requests)

    def stats(self) -> EngineStats:
        """Counters; may be read from any thread."""
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=self._scheduler.num_waiting,
            max_running=self._scheduler.max_seqs,
            cache_usage=self._cache.usage,
            prefix_queries=self._scheduler.prefix_queries,
            prefix_hits=self._scheduler.prefix_hits,
            preemptions=self._scheduler.num_preemptions,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            steps=self._steps,
            finished=dict(self._finished),
        )

    def add_request(self, source: EngineRequest, arrival_time: float | None = None) -> None:
        """Queue a request. Raises RequestError if it is invalid or can never run."""
        check_request(source, self.limits)
        if source.request_id in self._requests:
            raise RequestError(f"request id {source.request_id!r} is in use; choose another")
        params = source.params
        room = 0 if source.pooling else self.limits.max_model_len - len(source.prompt)
        max_new = room if params.max_tokens is None else min(params.max_tokens, room)
        end_ids = (*source.eos_ids, *(params.stop_token_ids or ()))
        request = Request(
            source=source,
            order=self._scheduler.next_order(source.priority),
            max_total=len(source.prompt) + max_new,
            tokens=array("i", source.prompt),
            blocks=self._cache.new_request(),
            sampling=SamplingState(
                params,
                source.prompt,
                end_ids=end_ids,
                bad_words=source.bad_words,
                seed=source.seed,
                sample=source.sample,
                grammar=source.grammar,
            ),
            stop_ids=frozenset(params.stop_token_ids or ()),
            metrics=RequestMetrics(time.monotonic() if arrival_time is None else arrival_time),
            leader=self._requests.get(source.leader) if source.leader is not None else None,
            pooling=PoolingState(source.pooling) if source.pooling is not None else None,
        )
        self._scheduler.add(request)
        self._requests[source.request_id] = request

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its memory at once. False if there is none of that name."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        self._scheduler.remove(request)
        self._finished["abort"] += 1
        return True

    def give_back_memory(self) -> int:
        """Forget all that is cached, and let the system have the memory until it is needed again.

        Returns the bytes given back. Raises RequestError while there are requests.
        """
        if self._requests:
            raise RequestError(
                f"{len(self._requests)} requests are not finished; memory can be given back afterwards"
            )
        self._cache.forget_all()
        pools = (self.runner.pool, self.runner.states)
        return sum(give_back_pages(pool.data_ptr(), pool.nbytes) for pool in pools if pool.nbytes)

    @torch.inference_mode()
    def step(self) -> list[TokenOutput | PooledOutput | RequestFailed]:
        """Advance by one step; what it added to requests that got a token, and finished vectors.

        Requests whose answer can't be given the form that they asked for have failed.
        """
        clock = self.runner.clock
        clock.start()
        work = self._scheduler.schedule()
        clock.lap("schedule")
        if not work:
            if self._scheduler.has_work:
                raise RuntimeError("the scheduler found nothing to do although requests are waiting")
            return []
        self._steps += 1
        self.runner.move_states(self._cache.states.take_moves())
        result = self.runner.run(work)
        logits, rows = result.logits, result.logit_rows
        self._note_progress(work)
        pooled = self._pool(result)
        final = [entry for entry in rows if self._last_row_samples(entry)]
        for entry in rows:
            if entry.request.wants_prompt_logprobs:
                self._add_prompt_logprobs(logits, entry)
        if not final:
            return pooled
        if len(final) < logits.shape[0]:
            logits = logits.index_select(0, torch.tensor([entry.stop - 1 for entry in final]))
        sampled = sampler.sample(logits, [entry.request.sampling for entry in final])
        clock.lap("sample")
        now = time.monotonic()
        outputs = [
            self._append(entry.request, token, logprobs, now)
            for entry, token, logprobs in zip(final, sampled.tokens, sampled.logprobs, strict=True)
        ]
        clock.lap("append")
        return [*outputs, *pooled]

    def _note_progress(self, work: dict[Request, int]) -> None:
        for request, count in work.items():
            request.num_computed += count
            if not request.prefilled:
                self._prompt_tokens += count
            self._cache.publish(
                request.blocks, request.tokens, request.num_computed, request.source.cache_extra
            )
        self.runner.move_states(self._cache.states.take_moves())

    def _pool(self, result: StepResult) -> list[TokenOutput | PooledOutput | RequestFailed]:
        """Take in the hidden states of requests that pool them, and end those that have them all."""
        outputs: list[TokenOutput | PooledOutput | RequestFailed] = []
        for entry in result.hidden_rows:
            request = entry.request
            assert request.pooling is not None
            assert result.hidden is not None
            request.pooling.add(result.hidden[entry.start : entry.stop])
            if request.num_computed == len(request.tokens):
                request.prefilled = True
                request.metrics.finished_time = time.monotonic()
                self._finish(request, "stop")
                outputs.append(
                    PooledOutput(
                        request_id=request.request_id,
                        embedding=request.pooling.result(),
                        num_prompt_tokens=request.prompt_len,
                        num_cached_tokens=request.num_cached,
                        metrics=request.metrics,
                    )
                )
        return outputs

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """Forget a request that has ended."""
        self._scheduler.remove(request)
        del self._requests[request.request_id]
        self._finished[reason] += 1

    @staticmethod
    def _last_row_samples(entry: Rows) -> bool:
        return entry.request.num_computed == len(entry.request.tokens)

    def _add_prompt_logprobs(self, logits: torch.Tensor, entry: Rows) -> None:
        """Log-probabilities of the prompt tokens that follow this step's positions."""
        request = entry.request
        if not request.prompt_logprobs:
            request.prompt_logprobs.append(None)
        first = request.num_computed - (entry.stop - entry.start) + 1
        following = request.tokens[first : request.num_computed + 1].tolist()
        count = request.source.params.prompt_logprobs
        if following and count is not None:
            rows = logits[entry.start : entry.start + len(following)]
            request.prompt_logprobs += sampler.prompt_logprobs(rows, following, count)

    def _append(
        self, request: Request, token: int, logprobs: PositionLogprobs | None, now: float
    ) -> TokenOutput | RequestFailed:
        """Add a token to its request, and finish the request if this was the last."""
        first = not request.prefilled
        request.prefilled = True
        request.tokens.append(token)
        request.sampling.append(token)
        grammar = request.source.grammar
        if grammar is not None and grammar.failed is not None:
            self._finish(request, "abort")
            problem = f"the form of the answer can't be followed any further: {grammar.failed}"
            return RequestFailed(request.request_id, RequestError(problem))
        self._generated_tokens += 1
        metrics = request.metrics
        interval = None
        if metrics.last_token_time is None:
            metrics.first_token_time = now
        else:
            interval = now - metrics.last_token_time
        metrics.last_token_time = now
        reason, stop_reason = self._finish_reason(request, token)
        if reason is not None:
            metrics.finished_time = now
            self._finish(request, reason)
        return TokenOutput(
            request_id=request.request_id,
            token_ids=[token],
            logprobs=None if logprobs is None else [logprobs],
            prompt_logprobs=request.prompt_logprobs if first and request.prompt_logprobs else None,
            finish_reason=reason,
            stop_reason=stop_reason,
            num_cached_tokens=request.num_cached,
            metrics=metrics,
            interval_s=interval,
        )

    @staticmethod
    def _finish_reason(request: Request, token: int) -> tuple[FinishReason | None, int | None]:
        params = request.source.params
        grammar = request.source.grammar
        if grammar is not None and token in request.source.eos_ids and grammar.active:
            return "stop", None
        if len(request.tokens) - request.prompt_len >= params.min_tokens:
            if not params.ignore_eos and token in request.source.eos_ids:
                return "stop", None
            if token in request.stop_ids:
                return "stop", token
        if len(request.tokens) >= request.max_total:
            return "length", None
        return None, None


def _check_pooling(source: EngineRequest, limits: EngineLimits) -> None:
    assert source.pooling is not None
    if len(source.prompt) > limits.max_model_len:
        raise RequestError(
            f"the prompt has {len(source.prompt)} tokens, more than max_model_len "
            f"{limits.max_model_len}; shorten it"
        )
    if (source.pooling.dimensions or 0) > limits.hidden_size:
        raise RequestError(
            f"dimensions is {source.pooling.dimensions}, but vectors of this model have "
            f"{limits.hidden_size} numbers; ask for at most that"
        )


def check_request(source: EngineRequest, limits: EngineLimits) -> None:
    """Raises RequestError if a request can't be served by a model of these limits."""
    params, prompt = source.params, source.prompt
    if not prompt:
        raise RequestError("the prompt has no tokens; give at least one")
    if source.pooling is not None:
        _check_pooling(source, limits)
    elif len(prompt) >= limits.max_model_len:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens, which leaves no room for an answer within "
            f"max_model_len {limits.max_model_len}; shorten it"
        )
    named = (
        ("the prompt", prompt),
        ("stop_token_ids", params.stop_token_ids or ()),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("logit_bias", params.logit_bias or ()),
    )
    for name, tokens in named:
        if tokens and not 0 <= min(tokens) <= max(tokens) < limits.vocab_size:
            wrong = next(t for t in tokens if not 0 <= t < limits.vocab_size)
            raise RequestError(
                f"{name} has token id {wrong}, but ids of this model are 0 to {limits.vocab_size - 1}"
            )
    for name, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if count is not None and count > limits.vocab_size:
            raise RequestError(f"{name} is {count}, but there are only {limits.vocab_size} tokens")
