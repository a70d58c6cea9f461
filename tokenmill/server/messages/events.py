"""Turns what a chat brings forth into blocks of a message, and into the events that tell of them.

Facts: https://docs.anthropic.com/en/api/messages-streaming, and the types of Anthropic's client.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from tokenmill.server.chat_events import (
    ChatEvent,
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from tokenmill.server.errors import ApiError

Event = dict[str, Any]
Block = dict[str, Any]


class MessageEvents:
    """One message as it grows.

    max_tokens: as asked for. Every method yields the events of what it was told; a caller that wants
    the whole message may ignore them and read ``answer`` at the end.
    """

    def __init__(self, model: str, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._block: Block | None = None
        self._written: list[str] = []
        self._begun = False
        self._finished: Finished | None = None
        self.answer: dict[str, Any] = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }

    def _begin(self) -> Iterator[Event]:
        """The message is under way."""
        yield {"type": "message_start", "message": dict(self.answer)}
        yield {"type": "ping"}

    def add(self, event: ChatEvent) -> Iterator[Event]:
        """What the model brought forth. The first that is not usage begins the answer."""
        if not self._begun and not isinstance(event, Usage):
            self._begun = True
            yield from self._begin()
        if isinstance(event, ReasoningDelta):
            if event.text:
                yield from self._switch({"type": "thinking", "thinking": "", "signature": ""})
                yield from self._extend(event.text, {"type": "thinking_delta", "thinking": event.text})
        elif isinstance(event, TextDelta):
            if event.text:
                yield from self._switch({"type": "text", "text": ""})
                yield from self._extend(event.text, {"type": "text_delta", "text": event.text})
        elif isinstance(event, ToolCallStart):
            yield from self._close()
            block = {"type": "tool_use", "id": event.call_id, "name": event.name, "input": {}}
            yield from self._open(block)
        elif isinstance(event, ToolCallDelta):
            # Calls come one after the other, so it is the open one that grows.
            delta = {"type": "input_json_delta", "partial_json": event.arguments}
            yield from self._extend(event.arguments, delta)
        elif isinstance(event, Finished):
            self._finished = event
        elif isinstance(event, Usage):
            self.answer["usage"] = _usage(event)

    def end(self) -> Iterator[Event]:
        """Nothing more will come. Raises ApiError if the engine gave the request up."""
        if self._finished is None or self._finished.reason == "abort":
            raise ApiError("the request was aborted", status=503, kind="service_unavailable_error")
        yield from self._close()
        reason, sequence = self._stop(self._finished)
        stop = {"stop_reason": reason, "stop_sequence": sequence}
        self.answer |= stop
        yield {"type": "message_delta", "delta": stop, "usage": self.answer["usage"]}
        yield {"type": "message_stop"}

    def _stop(self, finished: Finished) -> tuple[str, str | None]:
        if finished.reason == "length":
            whole = self.answer["usage"]["output_tokens"] >= self._max_tokens
            return ("max_tokens" if whole else "model_context_window_exceeded"), None
        if any(block["type"] == "tool_use" for block in self.answer["content"]):
            return "tool_use", None
        if isinstance(finished.stop_reason, str):
            return "stop_sequence", finished.stop_reason
        return "end_turn", None

    def _switch(self, block: Block) -> Iterator[Event]:
        if self._block is None or self._block["type"] != block["type"]:
            yield from self._close()
            yield from self._open(block)

    def _open(self, block: Block) -> Iterator[Event]:
        self._block = block
        self._written = []
        index = len(self.answer["content"])
        yield {"type": "content_block_start", "index": index, "content_block": block}

    def _extend(self, text: str, delta: dict[str, Any]) -> Iterator[Event]:
        self._written.append(text)
        yield {
            "type": "content_block_delta",
            "index": len(self.answer["content"]),
            "delta": delta,
        }

    def _close(self) -> Iterator[Event]:
        if self._block is None:
            return
        text, kind = "".join(self._written), self._block["type"]
        written = {"input": _read_input(text)} if kind == "tool_use" else {kind: text}
        yield {"type": "content_block_stop", "index": len(self.answer["content"])}
        self.answer["content"] = [*self.answer["content"], {**self._block, **written}]
        self._block = None


def _read_input(text: str) -> dict[str, Any]:
    """Arguments of a tool; none if the model did not write a whole object before its tokens ran out."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _usage(usage: Usage) -> dict[str, Any]:
    """Tokens. Those of the prompt that the cache held do not count as input's here."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
