"""The offline front door: a model, and many prompts at once."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from tokenmill.config import (
    CacheConfig,
    CacheDType,
    ComputeConfig,
    EngineConfig,
    LoadConfig,
    Quantization,
    SchedulerConfig,
)
from tokenmill.engine.build import BuiltEngine, build_engine
from tokenmill.engine.front import Front, Prompt, TokensPrompt
from tokenmill.engine.outputs import (
    EmbeddingRequestOutput,
    EngineStats,
    PooledOutput,
    RequestFailed,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from tokenmill.engine.pooling import PoolingParams, cosine
from tokenmill.engine.request import EngineRequest
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.engine.worker import EngineStopped, EngineThread, Event
from tokenmill.errors import RequestError

if TYPE_CHECKING:
    from tokenmill.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]
"""A conversation: dictionaries with "role" and "content"."""


class Pending(Protocol):
    """What a call waits for: the answers to one prompt, or its vector."""

    @property
    def finished(self) -> bool:
        """Whether everything is there."""
        ...

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The engine's names of what has not ended."""
        ...

    @property
    def engine_ids(self) -> tuple[str, ...]:
        """The engine's names."""
        ...

    def accept(self, out: Any) -> bool:
        """Take in what the engine made. True if the engine must drop it."""
        ...


class LLM:
    """A model that answers prompts; shaped like vLLM's class of the same name.

    model: alias ("demo"), ``pypi:PACKAGE``, ``hf:ORG/NAME[:file]``, ``ORG/NAME``, directory or file.
    dtype: type of unquantised matrices. quantization: quantise while loading.
    max_model_len: longest prompt plus answer. max_num_seqs: answers made at once.
    max_num_batched_tokens: tokens of one step. cache_memory_bytes: size of the block pool.
    cache_dtype: type of keys and values. enable_prefix_caching: reuse beginnings of earlier texts.
    scheduling_policy: "fcfs" or "priority". threads: compute threads. Options that are None are
    decided from the model and the machine.

    Use it in a ``with`` statement, or call ``shutdown``; both free its memory.

    Raises SourceError, CheckpointError or ConfigError if the model can't be served.
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto",
        quantization: Quantization | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        cache_memory_bytes: int | None = None,
        cache_dtype: CacheDType = "auto",
        enable_prefix_caching: bool = True,
        scheduling_policy: Literal["fcfs", "priority"] = "fcfs",
        threads: int | None = None,
    ) -> None:
        config = EngineConfig(
            load=LoadConfig(model, dtype, quantization),
            cache=CacheConfig(cache_memory_bytes, enable_prefix_caching, cache_dtype),
            scheduler=SchedulerConfig(
                max_num_batched_tokens, max_num_seqs, max_model_len, scheduling_policy
            ),
            compute=ComputeConfig(threads),
        )
        self._start(build_engine(config))

    @classmethod
    def from_built(cls, built: BuiltEngine) -> Self:
        """Over an engine that exists already."""
        llm = cls.__new__(cls)
        llm._start(built)
        return llm

    def _start(self, built: BuiltEngine) -> None:
        self.built = built
        self._front: Front = built.front
        self._tokenizer = built.tokenizer
        self._events: SimpleQueue[list[Event]] = SimpleQueue()
        self._thread = EngineThread(built.engine, self._events.put)
        self._names = itertools.count()
        self._one_call = threading.Lock()
        self._finalizer = weakref.finalize(self, self._thread.shutdown)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Stop the engine. May be called twice."""
        self._finalizer()

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer, in tokens."""
        return self._front.limits.max_model_len

    def stats(self) -> EngineStats:
        """Counters of this moment."""
        return self._thread.stats()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises RequestError if it has none."""
        if self._tokenizer is None:
            raise RequestError("this model has no tokenizer")
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's authors recommend, and what ``generate`` uses if it isn't told otherwise."""
        return self._front.default_params

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts.

        prompts: text or token ids, one or many, or dictionaries with "prompt" or "prompt_token_ids".
        sampling_params: one for all, or one for each. priority: one for each prompt; the smallest goes
        first, if the scheduling policy is "priority".

        Raises RequestError if a prompt can't be served (then none is), EngineDeadError if the engine
        has stopped.
        """
        many = list_prompts(prompts)
        params = _one_for_each(
            "sampling_params", sampling_params or self._front.default_params, len(many)
        )
        priorities = _one_for_each("priority", 0 if priority is None else priority, len(many))
        with self._one_call:
            prepared = []
            for prompt, own, rank in zip(many, params, priorities, strict=True):
                text, token_ids = self._front.tokenize(prompt)
                prepared.append(
                    self._front.prepare(
                        text,
                        token_ids,
                        own,
                        request_id=str(next(self._names)),
                        priority=rank,
                        cache_salt=cache_salt,
                    )
                )
            conversations = [p.conversation for p in prepared]
            self._run(conversations, [p.requests for p in prepared], use_tqdm)
        return [conversation.output() for conversation in conversations]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """One vector for each prompt, in their order.

        prompts: as ``generate`` takes them. pooling_params: one for all, or one for each.

        Raises RequestError if a prompt can't be served (then none is), EngineDeadError if the engine
        has stopped.
        """
        many = list_prompts(prompts)
        params = _one_for_each("pooling_params", pooling_params or PoolingParams(), len(many))
        with self._one_call:
            pooled = [
                self._front.prepare_pooling(
                    self._front.tokenize(prompt)[1], own, request_id=str(next(self._names))
                )
                for prompt, own in zip(many, params, strict=True)
            ]
            self._run(pooled, [(p.request,) for p in pooled], use_tqdm)
        return [p.output() for p in pooled]

    def score(
        self,
        data_1: Prompt | Sequence[Prompt],
        data_2: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[ScoringRequestOutput]:
        """How alike two texts are: the cosine of their vectors, -1 to 1.

        One text and many give a score for each of the many; otherwise there must be as many on both
        sides. Errors as in ``embed``.
        """
        first, second = list_prompts(data_1), list_prompts(data_2)
        if len(first) not in (1, len(second)):
            raise RequestError(
                f"there are {len(first)} texts on one side and {len(second)} on the other; "
                "give one, or as many as on the other side"
            )
        vectors = self.embed([*first, *second], pooling_params, use_tqdm=use_tqdm)
        left, right = vectors[: len(first)], vectors[len(first) :]
        pairs = zip(left * (len(right) if len(left) == 1 else 1), right, strict=True)
        return [
            ScoringRequestOutput(
                request_id=b.request_id,
                outputs=ScoringOutput(cosine(a.outputs.embedding, b.outputs.embedding)),
                prompt_token_ids=a.prompt_token_ids + b.prompt_token_ids,
                num_cached_tokens=a.num_cached_tokens + b.num_cached_tokens,
            )
            for a, b in pairs
        ]

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The next message of one conversation or of many.

        tools: functions that the model may call, as the OpenAI API describes them.
        add_generation_prompt: begin an answer; continue_final_message: go on with the last message
        instead. chat_template_kwargs: further variables of the template.

        Raises RequestError if the model has no chat template, or if it refuses the messages.
        """
        many: list[Any] = list(messages)
        if many and isinstance(many[0], Mapping):
            many = [many]
        options = {
            "tools": tools,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "continue_final_message": continue_final_message,
            **(chat_template_kwargs or {}),
        }
        prompts: list[Prompt] = [self._render(one, options) for one in many]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def _render(self, messages: Messages, options: Mapping[str, Any]) -> TokensPrompt:
        tokenizer = self.get_tokenizer()
        if tokenizer.chat_template is None:
            raise RequestError("this model has no chat template; use generate() with a plain prompt")
        text = tokenizer.chat_template.render(messages, **options)
        # The template has written whatever begins a text.
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        return TokensPrompt(prompt=text, prompt_token_ids=token_ids)

    def _run(
        self,
        pending: Sequence[Pending],
        requests: Sequence[tuple[EngineRequest, ...]],
        use_tqdm: bool,
    ) -> None:
        """Have the engine do what is asked for, and leave nothing behind if that fails."""
        try:
            for some in requests:
                self._thread.add(some)
            self._collect(pending, use_tqdm)
        finally:
            left = tuple(name for p in pending for name in p.unfinished)
            if left:
                self._thread.abort(left)

    def _collect(self, pending: Sequence[Pending], use_tqdm: bool) -> None:
        """Take in events until everything has ended."""
        owners = {name: p for p in pending for name in p.engine_ids}
        left = len(pending)
        tokens, started = 0, time.monotonic()
        with _progress_bar(left, shown=use_tqdm) as bar:
            while left:
                for event in self._events.get():
                    if isinstance(event, EngineStopped):
                        raise event.error
                    owner = owners.get(event.request_id)
                    # What is left over from an earlier call that was interrupted.
                    if owner is None or owner.finished:
                        continue
                    if isinstance(event, RequestFailed):
                        raise event.error
                    if owner.accept(event):
                        self._thread.abort((event.request_id,))
                    if isinstance(event, PooledOutput):
                        tokens += event.num_prompt_tokens
                    else:
                        tokens += len(event.token_ids)
                    if owner.finished:
                        left -= 1
                        speed = tokens / max(time.monotonic() - started, 1e-9)
                        bar.set_postfix_str(f"{speed:.1f} tokens/s", refresh=False)
                        bar.update(1)


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list. Token ids without a list around them are one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    many: list[Any] = list(prompts)
    if many and isinstance(many[0], int):
        return [many]
    return many


def _one_for_each(name: str, value: Any, count: int) -> list[Any]:
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise RequestError(f"there are {count} prompts, but {len(value)} {name}; give one for each")
    return list(value)


def _progress_bar(total: int, *, shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, disable=not shown, desc="prompts", unit="prompt", dynamic_ncols=True)
