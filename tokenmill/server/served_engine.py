"""The engine as the endpoints see it: within limits, in time, and with everything noted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from tokenmill.config import ServerConfig
from tokenmill.engine.outputs import (
    EmbeddingRequestOutput,
    EngineStats,
    RequestMetrics,
    RequestOutput,
)
from tokenmill.engine.pooling import PoolingParams
from tokenmill.engine.sampling_params import RequestOutputKind, SamplingParams
from tokenmill.errors import TokenmillError
from tokenmill.server.admission import queue_full
from tokenmill.server.answer_format import answer_format
from tokenmill.server.errors import ApiError
from tokenmill.server.metrics import Finished, Metrics
from tokenmill.server.protocol import ServingEngine, ServingTokenizer
from tokenmill.server.request_log import RequestNote, current_note

log = logging.getLogger("tokenmill.requests")

CHARS_PER_TOKEN = 16
FREELY_LONG = 1_000_000


class ServedEngine:
    """Puts every request to ``engine`` after checking it, whichever protocol it came by.

    Refuses what exceeds the limits of ``config`` (400) and what would wait behind too many others
    (429), ends what takes too long (504), and tells ``metrics``, the request's note and the log.
    answer_format: how the model writes thoughts, words and calls. Raises ConfigError if there is no
    tool parser of the configured name.
    """

    def __init__(self, engine: ServingEngine, config: ServerConfig, metrics: Metrics) -> None:
        self._engine = engine
        self._config = config
        self._metrics = metrics
        self._max_chars = config.max_prompt_chars or max(
            FREELY_LONG, CHARS_PER_TOKEN * engine.max_model_len
        )
        engine.watch(metrics.tokens)
        tokenizer = engine.tokenizer
        template = None if tokenizer is None else tokenizer.chat_template
        self.answer_format = answer_format(
            {} if template is None else template.sources, config.tool_parser
        )

    @property
    def tokenizer(self) -> ServingTokenizer | None:
        """The model's; None if it has none."""
        return self._engine.tokenizer

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer, in tokens."""
        return self._engine.max_model_len

    @property
    def is_dead(self) -> bool:
        """Whether every request fails."""
        return self._engine.is_dead

    @property
    def busy_s(self) -> float:
        """Seconds since the engine was last seen to make progress while it had work."""
        return self._engine.busy_s

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What the model's authors recommend."""
        return self._engine.default_sampling_params

    def stats(self) -> EngineStats:
        """Counters of this moment."""
        return self._engine.stats()

    def watch(self, seen: Any) -> None:
        """See ``AsyncEngine``."""
        self._engine.watch(seen)

    async def give_back_memory(self) -> int:
        """See ``AsyncEngine``."""
        return await self._engine.give_back_memory()

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Answers as they grow. Leaving the iteration drops the request.

        Raises ApiError if a limit is exceeded, and what the engine raises.
        """
        params = sampling_params or self._engine.default_sampling_params
        note = current_note() or RequestNote("-")
        self._check(prompt, params)
        self._admit(note)
        if self._config.log_prompts:
            log.info("id=%s prompt=%r", note.request_id, prompt)
        progress = _Progress(params)
        outputs: Any = self._engine.generate(
            prompt, params, request_id, priority=priority, cache_salt=cache_salt
        )
        limit = self._config.request_timeout_s
        deadline = None if limit is None else asyncio.get_running_loop().time() + limit
        failure = "abort"
        try:
            async with aclosing(outputs):
                while True:
                    try:
                        async with asyncio.timeout_at(deadline):
                            output = await anext(outputs)
                    except StopAsyncIteration:
                        break
                    progress.see(output)
                    yield output
        except TimeoutError:
            raise _too_slow(limit) from None
        except TokenmillError:
            failure = "error"
            raise
        finally:
            self._metrics.finished(progress.finished(failure))
            progress.tell(note, failure)

    async def embed(
        self,
        prompt: Any,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> EmbeddingRequestOutput:
        """The vector of a prompt. Errors as in ``generate``."""
        note = current_note() or RequestNote("-")
        self._check_length(prompt)
        self._admit(note)
        if self._config.log_prompts:
            log.info("id=%s prompt=%r", note.request_id, prompt)
        limit, arrived = self._config.request_timeout_s, time.monotonic()
        output: EmbeddingRequestOutput | None = None
        failure = "abort"
        try:
            async with asyncio.timeout(limit):
                output = await self._engine.embed(
                    prompt, pooling_params, request_id, priority=priority, cache_salt=cache_salt
                )
        except TimeoutError:
            raise _too_slow(limit) from None
        except TokenmillError:
            failure = "error"
            raise
        finally:
            reasons = [failure if output is None else "stop"]
            finished = Finished(
                prompt_tokens=0 if output is None else len(output.prompt_token_ids),
                generated=(),
                reasons=reasons,
                params=SamplingParams(max_tokens=None),
                times=None if output is None else output.metrics,
                arrived=arrived,
                ended=time.monotonic(),
            )
            self._metrics.finished(finished)
            note.prompt_tokens += finished.prompt_tokens
            note.cached_tokens += 0 if output is None else output.num_cached_tokens
            note.reasons += reasons
        return output

    def _check(self, prompt: Any, params: SamplingParams) -> None:
        self._check_length(prompt)
        check_limit("n", params.n, self._config.max_n)
        check_limit("logprobs", params.logprobs, self._config.max_logprobs)
        check_limit("prompt_logprobs", params.prompt_logprobs, self._config.max_logprobs)

    def _check_length(self, prompt: Any) -> None:
        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        if isinstance(text, str) and len(text) > self._max_chars:
            raise ApiError(
                f"the prompt has {len(text)} characters, more than the {self._max_chars} that this "
                "server accepts; shorten it",
                code="prompt_too_long",
            )

    def _admit(self, note: RequestNote) -> None:
        """A request with several prompts is let in once, as a whole."""
        if note.admitted:
            return
        stats = self._engine.stats()
        # Those that will get a place with the next step are not held up by anyone.
        held_up = stats.waiting - max(stats.max_running - stats.running, 0)
        if held_up >= self._config.max_queue:
            self._metrics.refused("queue_full")
            raise queue_full(stats.waiting)
        note.admitted = True


def _too_slow(limit: float | None) -> ApiError:
    return ApiError(
        f"the answer was not complete within the {limit:g} seconds that this server gives a "
        "request; ask for fewer tokens, or stream",
        status=504,
        kind="timeout_error",
        code="request_timeout",
    )


def check_limit(name: str, value: int | None, most: int) -> None:
    """Raises ApiError (400) if a field asks for more than this server gives."""
    if value is not None and value > most:
        raise ApiError(f"{name} is {value}, but this server gives at most {most}", param=name)


class _Progress:
    """What has been seen of one prompt's answers."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._arrived = time.monotonic()
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generated = [0] * params.n
        self._reasons: list[str | None] = [None] * params.n
        self._times: RequestMetrics | None = None

    def see(self, output: RequestOutput) -> None:
        """The next output of the engine."""
        self._prompt_tokens = len(output.prompt_token_ids)
        self._cached_tokens = output.num_cached_tokens or 0
        self._times = output.metrics
        adds = self._params.output_kind is RequestOutputKind.DELTA
        for answer in output.outputs:
            before = self._generated[answer.index] if adds else 0
            self._generated[answer.index] = before + len(answer.token_ids)
            self._reasons[answer.index] = answer.finish_reason

    def _ends(self, otherwise: str) -> Sequence[str]:
        return [reason or otherwise for reason in self._reasons]

    def finished(self, otherwise: str) -> Finished:
        """All of it. otherwise: how answers ended that have no reason of their own."""
        return Finished(
            prompt_tokens=self._prompt_tokens,
            generated=tuple(self._generated),
            reasons=self._ends(otherwise),
            params=self._params,
            times=self._times,
            arrived=self._arrived,
            ended=time.monotonic(),
        )

    def tell(self, note: RequestNote, otherwise: str) -> None:
        """Add this prompt to the note of its HTTP request."""
        note.prompt_tokens += self._prompt_tokens
        note.cached_tokens += self._cached_tokens
        note.generated_tokens += sum(self._generated)
        note.reasons += self._ends(otherwise)
        first = self._times.first_token_time if self._times is not None else None
        if first is not None and note.first_token_s is None:
            note.first_token_s = first - note.started
