"""The engine behind an asyncio front: requests are async iterators, the engine has its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from tokenmill.engine.build import BuiltEngine, build_engine
from tokenmill.engine.core import Engine
from tokenmill.engine.front import Conversation, Front, Prompt
from tokenmill.engine.outputs import (
    EmbeddingRequestOutput,
    EngineStats,
    PooledOutput,
    RequestFailed,
    RequestOutput,
    TokenOutput,
)
from tokenmill.engine.pooling import PoolingParams
from tokenmill.engine.sampling_params import RequestOutputKind, SamplingParams
from tokenmill.engine.worker import EngineStopped, EngineThread, Event
from tokenmill.errors import EngineDeadError, RequestError, TokenmillError

if TYPE_CHECKING:
    from tokenmill.config import EngineConfig
    from tokenmill.tokenizer import Tokenizer

LONG_TEXT = 20_000
"""Characters from which a prompt is tokenised on another thread, so that the loop stays responsive."""


class _Stream:
    """Events of one request on their way from the engine's thread to its coroutine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.pending: list[TokenOutput] = []
        self.pooled: PooledOutput | None = None
        self.error: TokenmillError | None = None
        self.aborted = False
        self.changed = asyncio.Event()


class AsyncEngine:
    """Serves many requests at once.

    tokenizer: the model's, for chat templates and the like; None if there is none.
    """

    def __init__(
        self,
        engine: Engine,
        front: Front,
        *,
        tokenizer: Tokenizer | None = None,
        built: BuiltEngine | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.built = built
        self._front = front
        self._streams: dict[str, _Stream] = {}
        """By the engine's request ids."""
        self._requests: dict[str, tuple[Conversation, _Stream]] = {}
        """By the callers' request ids."""
        self._watch: Callable[[Sequence[TokenOutput]], None] | None = None
        self._compiling = ThreadPoolExecutor(2, thread_name_prefix="tokenmill-form")
        self._thread = EngineThread(engine, self._deliver)

    @classmethod
    def from_config(cls, config: EngineConfig) -> AsyncEngine:
        """Load a model and start. Errors as ``build_engine`` says."""
        built = build_engine(config)
        return cls(built.engine, built.front, tokenizer=built.tokenizer, built=built)

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer, in tokens."""
        return self._front.limits.max_model_len

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        return self._front.limits.vocab_size

    @property
    def is_dead(self) -> bool:
        """Whether the engine has stopped, so that every request fails."""
        return self._thread.error is not None

    @property
    def busy_s(self) -> float:
        """Seconds since the engine was last seen to make progress while it had work; 0 while idle. Much
        more than a step takes means that it hangs."""
        return self._thread.busy_s

    def watch(self, seen: Callable[[Sequence[TokenOutput]], None]) -> None:
        """Call ``seen`` with all tokens as they come, on the event loop; it must return quickly."""
        self._watch = seen

    async def give_back_memory(self) -> int:
        """Forget all that is cached, and let the system have the memory until it is needed again.

        Returns the bytes given back. Raises RequestError while there are requests, EngineDeadError if
        the engine has stopped.
        """
        return await asyncio.wrap_future(self._thread.give_back_memory())

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What the model's authors recommend."""
        return self._front.default_params

    def stats(self) -> EngineStats:
        """Counters of this moment."""
        return self._thread.stats()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Answers as they grow; what each output holds is ``sampling_params.output_kind``.

        Leaving the iteration, or cancelling it, drops the request before the next step. cache_salt:
        only prompts with the same salt share cached beginnings.

        Raises RequestError if the request is invalid, EngineDeadError if the engine has stopped.
        """
        if self._thread.error is not None:
            raise self._thread.error
        params = sampling_params or self._front.default_params
        name = request_id or uuid.uuid4().hex
        text, token_ids = await self._tokenize(prompt)
        if name in self._requests:
            raise RequestError(f"request id {name!r} is in use; choose another")
        prepare = partial(
            self._front.prepare,
            text,
            token_ids,
            params,
            request_id=name,
            priority=priority,
            cache_salt=cache_salt,
        )
        # A form may take a while to compile. Not on the threads that others' prompts need.
        if params.structured_outputs:
            loop = asyncio.get_running_loop()
            prepared = await loop.run_in_executor(self._compiling, prepare)
        else:
            prepared = prepare()
        conversation = prepared.conversation
        stream = _Stream(asyncio.get_running_loop())
        self._requests[name] = (conversation, stream)
        for engine_id in conversation.engine_ids:
            self._streams[engine_id] = stream
        try:
            self._thread.add(prepared.requests)
            while not conversation.finished:
                await stream.changed.wait()
                stream.changed.clear()
                output = self._collect(conversation, stream)
                if output is not None:
                    yield output
        finally:
            for engine_id in conversation.engine_ids:
                self._streams.pop(engine_id, None)
            self._requests.pop(name, None)
            if conversation.unfinished:
                self._thread.abort(conversation.unfinished)

    async def embed(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> EmbeddingRequestOutput:
        """The vector of a prompt. Cancelling drops the request before the next step.

        Raises RequestError if the request is invalid, EngineDeadError if the engine has stopped.
        """
        if self._thread.error is not None:
            raise self._thread.error
        _, token_ids = await self._tokenize(prompt)
        pooled = self._front.prepare_pooling(
            token_ids,
            pooling_params or PoolingParams(),
            request_id=request_id or uuid.uuid4().hex,
            priority=priority,
            cache_salt=cache_salt,
        )
        stream = _Stream(asyncio.get_running_loop())
        name = pooled.request.request_id
        self._streams[name] = stream
        try:
            self._thread.add((pooled.request,))
            await stream.changed.wait()
            if stream.pooled is not None:
                pooled.accept(stream.pooled)
            elif stream.error is not None:
                raise stream.error
        finally:
            self._streams.pop(name, None)
            if pooled.unfinished:
                self._thread.abort(pooled.unfinished)
        return pooled.output()

    async def _tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str) and len(prompt) > LONG_TEXT:
            return await asyncio.to_thread(self._front.tokenize, prompt)
        return self._front.tokenize(prompt)

    def _collect(self, conversation: Conversation, stream: _Stream) -> RequestOutput | None:
        """Everything that has arrived since the last time, as one output."""
        pending, stream.pending = stream.pending, []
        stopped = [out.request_id for out in pending if conversation.accept(out)]
        if stopped:
            self._thread.abort(tuple(stopped))
        if conversation.finished:
            return conversation.output()
        if stream.aborted:
            unfinished = conversation.unfinished
            conversation.end_as_aborted()
            self._thread.abort(unfinished)
            return conversation.output()
        if stream.error is not None:
            raise stream.error
        if not pending or conversation.params.output_kind is RequestOutputKind.FINAL_ONLY:
            return None
        return conversation.output()

    async def abort(self, request_id: str) -> None:
        """End a request; its iterator ends with finish reason "abort". Unknown ids are ignored."""
        entry = self._requests.get(request_id)
        if entry is None:
            return
        conversation, stream = entry
        self._thread.abort(conversation.unfinished)
        stream.aborted = True
        stream.loop.call_soon_threadsafe(stream.changed.set)

    def shutdown(self) -> None:
        """Stop the engine after its present step. Requests that are not finished fail."""
        self._thread.shutdown()

    def _deliver(self, events: list[Event]) -> None:
        """On the engine's thread: hand events to the loops that wait for them."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Event]] = {}
        for event in events:
            if isinstance(event, EngineStopped):
                loops = {stream.loop for stream in tuple(self._streams.values())}
                for loop in loops:
                    by_loop.setdefault(loop, []).append(event)
            else:
                stream = self._streams.get(event.request_id)
                if stream is not None:
                    by_loop.setdefault(stream.loop, []).append(event)
        for loop, some in by_loop.items():
            # A loop that was closed has nobody left to tell.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._arrive, some)

    def _arrive(self, events: Sequence[Event]) -> None:
        """On an event loop: wake the coroutines that the events belong to."""
        if self._watch is not None:
            self._watch([event for event in events if isinstance(event, TokenOutput)])
        for event in events:
            if isinstance(event, EngineStopped):
                for stream in tuple(self._streams.values()):
                    stream.error = EngineDeadError(str(event.error))
                    stream.changed.set()
                continue
            found = self._streams.get(event.request_id)
            if found is None:
                continue
            if isinstance(event, RequestFailed):
                found.error = event.error
            elif isinstance(event, PooledOutput):
                found.pooled = event
            else:
                found.pending.append(event)
            found.changed.set()
