"""An engine that writes what the prompt says, and notes what it was asked."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenmill.engine.outputs import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    EngineStats,
    FinishReason,
    Logprob,
    RequestMetrics,
    RequestOutput,
    TokenOutput,
)
from tokenmill.engine.pooling import PoolingParams
from tokenmill.engine.sampling_params import RequestOutputKind, SamplingParams
from tokenmill.errors import EngineDeadError, RequestError


class FakeTemplate:
    """Only the last message counts. source: what tells how the model writes calls and thoughts."""

    def __init__(self, source: str = "") -> None:
        self.sources = {"default": source}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        last = messages[-1]
        if last.get("role") not in ("user", "assistant", "system"):
            raise RequestError(f"there is no role {last.get('role')!r}")
        marks = "+tools" if tools else ""
        marks += "".join(f"+{name}={value}" for name, value in kwargs.items())
        return f"{last['content']}{marks}"


class FakeTokenizer:
    """A token is a character's code."""

    def __init__(self, chat_template: FakeTemplate | None) -> None:
        self.chat_template = chat_template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, token_ids))

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def is_special(self, token_id: int) -> bool:
        return False

    def id_to_token(self, token_id: int) -> str | None:
        return chr(token_id) if token_id < 0x110000 else None

    def token_to_id(self, token: str) -> int | None:
        return ord(token) if len(token) == 1 else None


@dataclass
class Asked:
    """One call of generate. ended: "finished", or "dropped" if the caller left."""

    prompt: Any
    params: SamplingParams
    request_id: str | None
    priority: int
    cache_salt: str | None
    ended: str | None = None


@dataclass
class Vectored:
    """One call of embed. ended: "finished", or "dropped" if the caller left."""

    prompt: Any
    params: PoolingParams
    priority: int
    cache_salt: str | None
    ended: str | None = None


@dataclass
class FakeEngine:
    """Answers with the prompt's letters, over and over, until max_tokens.

    "!" in a prompt: refused. "?" in a prompt: the engine dies after three tokens. obeys_marks: whether
    it heeds either. reason: why answers end. pace: seconds between tokens. 26 stands for the end of an
    answer that has no limit.
    """

    pace: float = 0.0
    is_dead: bool = False
    busy_s: float = 0.0
    running: int = 0
    waiting: int = 0
    max_running: int = 0
    memory_given_back: int = 0
    max_model_len: int = 1000
    has_template: bool = True
    template_source: str = ""
    reason: FinishReason = "length"
    obeys_marks: bool = True
    default_sampling_params: SamplingParams = field(default_factory=SamplingParams)
    asked: list[Asked] = field(default_factory=list)
    vectored: list[Vectored] = field(default_factory=list)

    @property
    def tokenizer(self) -> FakeTokenizer:
        return FakeTokenizer(FakeTemplate(self.template_source) if self.has_template else None)

    def die(self) -> None:
        """Every request fails, as after a shutdown."""
        self.is_dead = True

    def stats(self) -> EngineStats:
        return EngineStats(self.running, self.waiting, self.max_running)

    def watch(self, seen: Callable[[Sequence[TokenOutput]], None]) -> None:
        self.seen = seen

    async def give_back_memory(self) -> int:
        self.memory_given_back += 1
        return 4096

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        params = sampling_params or self.default_sampling_params
        call = Asked(prompt, params, request_id, priority, cache_salt)
        self.asked.append(call)
        if isinstance(prompt, dict):
            ids = prompt["prompt_token_ids"]
        else:
            ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not all(0 <= token < 0x110000 for token in ids):
            raise RequestError("the prompt has a token id that is not in the vocabulary")
        if len(ids) > self.max_model_len:
            raise RequestError(f"the prompt is longer than {self.max_model_len} tokens")
        letters = self.tokenizer.decode(ids)
        if self.obeys_marks and "!" in letters:
            raise RequestError("temperature of this prompt is too high")
        if not ids:
            raise RequestError("the prompt is empty")
        whole: list[list[int]] = [[] for _ in range(params.n)]
        length = min(params.max_tokens or 26, self.max_model_len)
        try:
            for step in range(length):
                await asyncio.sleep(self.pace)
                if self.is_dead or (self.obeys_marks and "?" in letters and step == 3):
                    raise EngineDeadError("the engine stopped")
                for tokens in whole:
                    tokens.append(ids[step % len(ids)])
                last = step == length - 1
                if params.output_kind is RequestOutputKind.DELTA:
                    yield self._output(ids, params, [tokens[-1:] for tokens in whole], last)
                elif last:
                    yield self._output(ids, params, whole, last)
            call.ended = "finished"
        finally:
            call.ended = call.ended or "dropped"

    async def embed(
        self,
        prompt: Any,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> EmbeddingRequestOutput:
        """The vector of a text counts its letters by their codes' last two bits."""
        params = pooling_params or PoolingParams()
        call = Vectored(prompt, params, priority, cache_salt)
        self.vectored.append(call)
        if isinstance(prompt, dict):
            ids = prompt["prompt_token_ids"]
        else:
            ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not all(0 <= token < 0x110000 for token in ids):
            raise RequestError("the prompt has a token id that is not in the vocabulary")
        if len(ids) > self.max_model_len:
            raise RequestError(f"the prompt is longer than {self.max_model_len} tokens")
        if self.obeys_marks and ord("!") in ids:
            raise RequestError("temperature of this prompt is too high")
        if (params.dimensions or 0) > 4:
            raise RequestError(f"dimensions is {params.dimensions}, but vectors have 4 numbers")
        try:
            await asyncio.sleep(self.pace)
            if self.is_dead or self.tokenizer.decode(ids) == "die":
                raise EngineDeadError("the engine stopped")
            call.ended = "finished"
        finally:
            call.ended = call.ended or "dropped"
        counts = [float(sum(token % 4 == bits for token in ids)) for bits in range(4)]
        counts = counts[: params.dimensions]
        length = math.hypot(*counts) if params.normalize else 1.0
        return EmbeddingRequestOutput(
            request_id=request_id or "",
            outputs=EmbeddingOutput([count / (length or 1.0) for count in counts]),
            prompt_token_ids=list(ids),
            num_cached_tokens=1,
            metrics=RequestMetrics(0.0),
        )

    def _output(
        self, ids: list[int], params: SamplingParams, parts: list[list[int]], last: bool
    ) -> RequestOutput:
        def entry(token: int) -> dict[int, Logprob]:
            return {
                token: Logprob(-0.5, 1, chr(token)),
                token + 1: Logprob(float("-inf"), 2, chr(token + 1)),
            }

        prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if params.prompt_logprobs is not None:
            prompt_logprobs = [None, *(entry(token) for token in ids[1:])]
        return RequestOutput(
            request_id="",
            prompt=None,
            prompt_token_ids=ids,
            outputs=[
                CompletionOutput(
                    index=index,
                    text="".join(map(chr, tokens)),
                    token_ids=tokens,
                    logprobs=[entry(t) for t in tokens] if params.logprobs is not None else None,
                    finish_reason=self.reason if last else None,
                )
                for index, tokens in enumerate(parts)
            ],
            finished=last,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=1,
        )
