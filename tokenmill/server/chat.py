"""/v1/chat/completions: a conversation in, its next message out."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from tokenmill.server.chat_events import (
    ChatEvent,
    ChatStep,
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
    chat_steps,
)
from tokenmill.server.logprobs import prompt_logprobs
from tokenmill.server.protocol import ChatEngine, ChatRequest


class ChatCompletion:
    """One request under way. model: the name in the answer."""

    def __init__(self, engine: ChatEngine, request: ChatRequest, model: str) -> None:
        self._engine = engine
        self._request = request
        self._model = model
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        common = self._request.common
        choices = [_Choice(index) for index in range(common.sampling.n)]
        last: ChatStep | None = None
        async with aclosing(chat_steps(self._engine, self._request)) as steps:
            async for step in steps:
                last = step
                for event in step.events:
                    if not isinstance(event, Usage):
                        choices[event.index].add(event)
        assert last is not None
        answer = {
            **self._head("chat.completion"),
            "choices": [self._whole_choice(choice) for choice in choices],
            "usage": _usage(last.usage),
        }
        if common.return_token_ids:
            answer["prompt_token_ids"] = last.output.prompt_token_ids
        shown = common.sampling.prompt_logprobs
        if shown is not None:
            answer["prompt_logprobs"] = prompt_logprobs(last.output, shown)
        return answer

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The answer in pieces."""
        common = self._request.common
        head = self._head("chat.completion.chunk")
        last: ChatStep | None = None
        async with aclosing(chat_steps(self._engine, self._request)) as steps:
            async for step in steps:
                beside = self._usage_beside(step.usage)
                if last is None:
                    first = {**head, **beside}
                    if common.return_token_ids:
                        first["prompt_token_ids"] = step.output.prompt_token_ids
                    for index in range(common.sampling.n):
                        delta = {"role": "assistant", "content": ""}
                        yield {**first, "choices": [_chunk_choice(index, delta)]}
                last = step
                for choice in _choices_of(step.events):
                    if self._is_shown(choice):
                        yield {**head, "choices": [self._piece(choice)], **beside}
        if common.include_usage and last is not None:
            yield {**head, "choices": [], "usage": _usage(last.usage)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _usage_beside(self, usage: Usage) -> dict[str, Any]:
        """What a piece of a stream says of the usage: nothing, null, or all so far."""
        common = self._request.common
        if common.continuous_usage:
            return {"usage": _usage(usage)}
        return {"usage": None} if common.include_usage else {}

    def _whole_choice(self, choice: _Choice) -> dict[str, Any]:
        finished = choice.finished
        assert finished is not None
        message: dict[str, Any] = {
            "role": "assistant",
            "content": choice.text or (None if choice.calls or choice.thoughts else ""),
            "refusal": None,
            **choice.reasoning(),
        }
        if choice.calls:
            message["tool_calls"] = list(choice.calls.values())
        answer = {
            "index": choice.index,
            "message": message,
            "logprobs": choice.log_probabilities(),
            "finish_reason": finished.reason,
            "stop_reason": finished.stop_reason,
        }
        return self._with_tokens(answer, choice)

    def _is_shown(self, choice: _Choice) -> bool:
        """Whether there is anything to tell of what came."""
        if choice.text or choice.thoughts or choice.calls or choice.finished is not None:
            return True
        return bool(choice.logprobs or (self._request.common.return_token_ids and choice.token_ids))

    def _piece(self, choice: _Choice) -> dict[str, Any]:
        delta: dict[str, Any] = {
            **({"content": choice.text} if choice.text else {}),
            **choice.reasoning(),
        }
        if choice.calls:
            delta["tool_calls"] = [{"index": number, **call} for number, call in choice.calls.items()]
        piece = _chunk_choice(choice.index, delta)
        piece["logprobs"] = choice.log_probabilities()
        if choice.finished is not None:
            piece["finish_reason"] = choice.finished.reason
            piece["stop_reason"] = choice.finished.stop_reason
        return self._with_tokens(piece, choice)

    def _with_tokens(self, values: dict[str, Any], choice: _Choice) -> dict[str, Any]:
        if self._request.common.return_token_ids:
            values["token_ids"] = choice.token_ids
        return values


class _Choice:
    """What has come of one choice: all of it, or what one piece of a stream tells.

    calls: by number, as chat completions write them. logprobs: None if nobody asked.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.text = ""
        self.thoughts = ""
        self.calls: dict[int, dict[str, Any]] = {}
        self.logprobs: list[Any] | None = None
        self.token_ids: list[int] = []
        self.finished: Finished | None = None

    def add(self, event: ChatEvent) -> None:
        """More of it."""
        if isinstance(event, TextDelta):
            self.text += event.text
            self.token_ids += event.token_ids
            if event.logprobs is not None:
                self.logprobs = [*(self.logprobs or ()), *event.logprobs]
        elif isinstance(event, ReasoningDelta):
            self.thoughts += event.text
        elif isinstance(event, ToolCallStart):
            self.calls[event.call_index] = {
                "id": event.call_id,
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
        elif isinstance(event, ToolCallDelta):
            call = self.calls.setdefault(event.call_index, {"function": {"arguments": ""}})
            call["function"]["arguments"] += event.arguments
        elif isinstance(event, Finished):
            self.finished = event

    def reasoning(self) -> dict[str, str]:
        """Thoughts, by the name that most servers use and by the one that vLLM changes to."""
        if not self.thoughts:
            return {}
        return {"reasoning_content": self.thoughts, "reasoning": self.thoughts}

    def log_probabilities(self) -> dict[str, Any] | None:
        """``logprobs`` of a choice."""
        return None if self.logprobs is None else {"content": self.logprobs, "refusal": None}


def _choices_of(events: Sequence[ChatEvent]) -> Iterator[_Choice]:
    """Events that came together, by choice."""
    choices: dict[int, _Choice] = {}
    for event in events:
        if not isinstance(event, Usage):
            choices.setdefault(event.index, _Choice(event.index)).add(event)
    yield from choices.values()


def _usage(usage: Usage) -> dict[str, Any]:
    """In the OpenAI API's words."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _chunk_choice(number: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}
