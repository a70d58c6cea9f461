"""What a model brings forth in a chat, in no protocol's words; each protocol turns it into its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from tokenmill.engine.outputs import CompletionOutput
from tokenmill.server.chat_prompt import chat_prompt
from tokenmill.server.logprobs import chat_logprobs
from tokenmill.server.protocol import ChatRequest, ServingEngine


@dataclass(frozen=True)
class ReasoningDelta:
    """The model thinks. index: of the choice, here and below."""

    index: int
    text: str


@dataclass(frozen=True)
class TextDelta:
    """The model speaks. logprobs: entries of chat completions for ``token_ids``, if asked for."""

    index: int
    text: str
    logprobs: Sequence[dict[str, Any]] | None
    token_ids: Sequence[int]


@dataclass(frozen=True)
class ToolCallStart:
    """The model begins to call a tool. call_index: counts the calls of the choice."""

    index: int
    call_index: int
    call_id: str
    name: str


@dataclass(frozen=True)
class ToolCallDelta:
    """Arguments as JSON. A call is complete when another one, or something else, begins."""

    index: int
    call_index: int
    arguments: str


@dataclass(frozen=True)
class Finished:
    """The choice is complete. reason: stop, length, tool_calls, or abort.

    stop_reason: the stop text or token id that ended it; None for the end of the sequence.
    """

    index: int
    reason: str
    stop_reason: int | str | None


@dataclass(frozen=True)
class Usage:
    """Tokens so far, of all choices. The first event tells those of the prompt, the last one all."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int


ChatEvent = ReasoningDelta | TextDelta | ToolCallStart | ToolCallDelta | Finished | Usage


async def chat_events(engine: ServingEngine, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
    """The answers to a chat, as they grow or whole, as its sampling parameters say.

    Raises ApiError (400) if the model has no chat template, RequestError if the request does not suit
    the model, EngineDeadError if the engine ends. Closing the generator drops the request.
    """
    common = request.common
    # A template may take a while, and must not hold up other requests' tokens.
    prompt = await asyncio.to_thread(chat_prompt, engine.tokenizer, request)
    outputs: Any = engine.generate(
        prompt,
        common.sampling,
        f"chat-{uuid.uuid4().hex}",
        priority=common.priority,
        cache_salt=common.cache_salt,
    )
    usage: Usage | None = None
    ended: set[int] = set()
    async with aclosing(outputs):
        async for out in outputs:
            if usage is None:
                usage = Usage(len(out.prompt_token_ids), 0, out.num_cached_tokens or 0, 0)
                yield usage
            generated = usage.completion_tokens + sum(len(part.token_ids) for part in out.outputs)
            usage = Usage(usage.prompt_tokens, generated, usage.cached_tokens, 0)
            for part in out.outputs:
                if part.index in ended:
                    continue
                if part.text or part.token_ids:
                    logprobs = _logprobs(engine, part, common.sampling.logprobs)
                    yield TextDelta(part.index, part.text, logprobs, part.token_ids)
                if part.finish_reason is not None:
                    ended.add(part.index)
                    yield Finished(part.index, part.finish_reason, part.stop_reason)
    if usage is not None:
        yield usage


def _logprobs(
    engine: ServingEngine, part: CompletionOutput, count: int | None
) -> list[dict[str, Any]] | None:
    if count is None or part.logprobs is None:
        return None
    content: list[dict[str, Any]] = chat_logprobs(part, engine.tokenizer, count)["content"]
    return content
