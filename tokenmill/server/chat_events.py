"""What a model brings forth in a chat, in no protocol's words; each protocol turns it into its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.engine.outputs import CompletionOutput, RequestOutput
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.engine.structured_outputs import StructuredOutputs
from tokenmill.errors import RequestError, TokenmillError
from tokenmill.server.answer_format import (
    AnswerFormat,
    AnswerReader,
    Begun,
    ThoughtCounter,
    how_begun,
)
from tokenmill.server.chat_prompt import chat_prompt
from tokenmill.server.errors import ApiError
from tokenmill.server.forms import answer_form
from tokenmill.server.logprobs import chat_logprobs
from tokenmill.server.protocol import ChatEngine, ChatRequest, ServingTokenizer
from tokenmill.server.tools.output import Arguments, Call, Part, Said, Thought


@dataclass(frozen=True)
class ReasoningDelta:
    """The model thinks. index: of the choice, here and below."""

    index: int
    text: str


@dataclass(frozen=True)
class TextDelta:
    """The model speaks. logprobs: entries of chat completions for ``token_ids``, if asked for.

    Tokens of thoughts and calls come here as well, with no text.
    """

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


async def chat_events(engine: ChatEngine, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
    """The answers to a chat, as they grow or whole, as its sampling parameters say.

    Errors as in ``chat_steps``. Closing the generator drops the request.
    """
    last: Usage | None = None
    async with aclosing(chat_steps(engine, request)) as steps:
        async for step in steps:
            if last is None:
                yield replace(step.usage, completion_tokens=0, reasoning_tokens=0)
            last = step.usage
            for event in step.events:
                yield event
    if last is not None:
        yield last


@dataclass(frozen=True)
class ChatStep:
    """What one output of the engine brings. usage: so far."""

    output: RequestOutput
    events: Sequence[ChatEvent]
    usage: Usage


async def chat_steps(engine: ChatEngine, request: ChatRequest) -> AsyncGenerator[ChatStep, None]:
    """Like ``chat_events``, with all that came at once in one piece.

    Raises ApiError (400) if the model has no chat template or an answer can't have the form that was
    asked for, RequestError if the request does not suit the model, EngineDeadError if the engine ends.
    """
    common, tokenizer = request.common, engine.tokenizer
    # A template may take a while, and must not hold up other requests' tokens.
    plan = await asyncio.to_thread(_plan, engine.answer_format, tokenizer, request)
    answers = [_Answer(engine, request, plan, index) for index in range(common.sampling.n)]
    outputs: Any = engine.generate(
        plan.prompt,
        plan.sampling,
        f"chat-{uuid.uuid4().hex}",
        priority=common.priority,
        cache_salt=common.cache_salt,
    )
    generated = 0
    async with aclosing(outputs):
        try:
            async for out in outputs:
                generated += sum(len(part.token_ids) for part in out.outputs)
                events = [event for part in out.outputs for event in answers[part.index].add(part)]
                thoughts = sum(answer.thoughts for answer in answers)
                cached = out.num_cached_tokens or 0
                usage = Usage(len(out.prompt_token_ids), generated, cached, thoughts)
                yield ChatStep(out, events, usage)
        except RequestError as error:
            raise _blaming(plan.form, error) from error


@dataclass(frozen=True)
class _Plan:
    """What the engine is asked, and how its answers have to be read. form: what they must look like."""

    prompt: dict[str, Any]
    sampling: SamplingParams
    begun: Begun
    form: StructuredOutputs | None


def _plan(how: AnswerFormat, tokenizer: ServingTokenizer | None, request: ChatRequest) -> _Plan:
    prompt = chat_prompt(tokenizer, request)
    assert tokenizer is not None
    sampling, text = request.common.sampling, prompt["prompt"]
    content = request.messages[-1].get("content")
    continues = request.options["continue_final_message"] and isinstance(content, str)
    begun = how_begun(how, text, content if continues else None)
    asked: Any = sampling.structured_outputs
    form = answer_form(how, begun, request.tools, asked, tokenizer, text)
    ids = [tokenizer.token_to_id(mark) for mark in how.marks(calls=request.tools is not None)]
    shown = sorted(token for token in ids if token is not None and tokenizer.is_special(token))
    return _Plan(
        prompt=prompt,
        sampling=replace(
            sampling,
            structured_outputs=form,
            shown_token_ids=shown,
        ),
        begun=begun,
        form=form,
    )


class _Answer:
    """One of the answers: the engine's outputs as events."""

    def __init__(self, engine: ChatEngine, request: ChatRequest, plan: _Plan, index: int) -> None:
        how, tools = engine.answer_format, request.tools
        self._engine = engine
        self._request = request
        self._index = index
        self._calls = 0
        self._ended = False
        self._reader: AnswerReader | None = None
        if tools is not None or how.thoughts is not None:
            functions = None if tools is None else {one.name: one for one in tools.functions}
            self._reader = AnswerReader(how, plan.begun, functions)
        self._counter: ThoughtCounter | None = None
        if how.thoughts is not None:
            self._counter = ThoughtCounter(how.thoughts, opened=plan.begun.thinking)

    @property
    def thoughts(self) -> int:
        """Tokens of thoughts so far."""
        return 0 if self._counter is None else self._counter.tokens

    def add(self, part: CompletionOutput) -> Iterator[ChatEvent]:
        """What this output brings."""
        if self._ended:
            return
        self._count(part.token_ids)
        parts: Sequence[Part] = [Said(part.text)] if part.text else []
        if self._reader is not None:
            parts = self._reader.push(part.text)
            if part.finish_reason is not None:
                parts = [*parts, *self._reader.finish()]
        yield from self._events(part, parts)
        if part.finish_reason is not None:
            self._ended = True
            reason: str = part.finish_reason
            if reason == "stop" and self._calls:
                reason = "tool_calls"
            yield Finished(self._index, reason, part.stop_reason)

    def _count(self, token_ids: Sequence[int]) -> None:
        tokenizer = self._engine.tokenizer
        if self._counter is not None and tokenizer is not None:
            for token in token_ids:
                self._counter.add(tokenizer.token_bytes(token))

    def _events(self, output: CompletionOutput, parts: Sequence[Part]) -> Iterator[ChatEvent]:
        logprobs, tokens = self._logprobs(output), output.token_ids
        if tokens and not any(isinstance(part, Said) for part in parts):
            yield TextDelta(self._index, "", logprobs, tokens)
        for part in parts:
            if isinstance(part, Said):
                yield TextDelta(self._index, part.text, logprobs, tokens)
                logprobs, tokens = None if logprobs is None else [], []
            elif isinstance(part, Thought):
                if self._request.include_reasoning:
                    yield ReasoningDelta(self._index, part.text)
            else:
                yield from self._call(part)

    def _call(self, part: Call | Arguments) -> Iterator[ChatEvent]:
        self._calls += isinstance(part, Call)
        number = self._calls - 1
        tools = self._request.tools
        if number and not (tools is not None and tools.parallel):
            return
        if isinstance(part, Arguments):
            yield ToolCallDelta(self._index, number, part.text)
        else:
            call_id = part.call_id or self._engine.answer_format.family.call_id()
            yield ToolCallStart(self._index, number, call_id, part.name)

    def _logprobs(self, part: CompletionOutput) -> list[dict[str, Any]] | None:
        count = self._request.common.sampling.logprobs
        if count is None or part.logprobs is None:
            return None
        content: list[dict[str, Any]] = chat_logprobs(part, self._engine.tokenizer, count)["content"]
        return content


def _blaming(form: StructuredOutputs | None, error: RequestError) -> TokenmillError:
    """An error of the answer's form tells which field asked for it."""
    field = "structured_outputs"
    if form is not None and form.called is not None:
        field = form.called
    return ApiError(str(error), param=field) if str(error).startswith(field) else error
