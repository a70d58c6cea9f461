"""Turns what a chat brings forth into items, and into the events that tell of them.

Facts: https://platform.openai.com/docs/api-reference/responses-streaming, and the types of OpenAI's
client.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
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
from tokenmill.server.responses.items import Item, new_id
from tokenmill.server.responses.open_items import (
    OpenCall,
    OpenContent,
    OpenItem,
    OpenMessage,
    OpenReasoning,
)

Event = dict[str, Any]

ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}
"""Codes of failed responses by status; any other is a server_error."""


class ResponseEvents:
    """One response as it grows.

    shown: what the answer repeats of the request. Every method yields the events of what it was told;
    a caller that wants the whole answer may ignore them and read ``answer`` at the end.
    """

    def __init__(self, model: str, shown: Mapping[str, Any]) -> None:
        self.answer: dict[str, Any] = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "usage": None,
            **shown,
        }
        self._number = 0
        self._item: OpenItem | None = None
        self._begun = False
        self._usage: dict[str, Any] | None = None
        self._finished: Finished | None = None

    def _begin(self) -> Iterator[Event]:
        """The answer is under way, if that was not told yet."""
        if self._begun:
            return
        self._begun = True
        yield self._event("response.created", response=dict(self.answer))
        yield self._event("response.in_progress", response=dict(self.answer))

    def add(self, event: ChatEvent) -> Iterator[Event]:
        """What the model brought forth. The first that is not usage begins the answer."""
        if not isinstance(event, Usage):
            yield from self._begin()
        if isinstance(event, ReasoningDelta):
            yield from self._switch(OpenReasoning)
            yield from self._extend(event.text)
        elif isinstance(event, TextDelta):
            if event.text or isinstance(self._item, OpenMessage):
                yield from self._switch(OpenMessage)
                yield from self._extend(event.text, _logprobs(event.logprobs))
        elif isinstance(event, ToolCallStart):
            yield from self._close("completed")
            yield from self._open(OpenCall(event.call_id, event.name))
        elif isinstance(event, ToolCallDelta):
            # Calls come one after the other, so it is the open one that grows.
            yield from self._extend(event.arguments)
        elif isinstance(event, Finished):
            self._finished = event
        elif isinstance(event, Usage):
            self._usage = _usage(event)

    def end(self) -> Iterator[Event]:
        """Nothing more will come. Raises ApiError if the engine gave the request up."""
        reason = self._finished.reason if self._finished is not None else "abort"
        if reason == "abort":
            raise ApiError("the request was aborted", status=503, kind="service_unavailable_error")
        cut = reason == "length"
        if self._item is None and not self.answer["output"]:
            yield from self._open(OpenMessage())
        yield from self._close("incomplete" if cut else "completed")
        self.answer["usage"] = self._usage
        if cut:
            self.answer |= {
                "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
            }
        else:
            self.answer |= {"status": "completed", "completed_at": int(time.time())}
        yield self._event(f"response.{self.answer['status']}", response=self.answer)

    def fail(self, error: ApiError) -> Iterator[Event]:
        """An error ended it, too late for a status."""
        yield from self._begin()
        yield from self._close("incomplete")
        self.answer |= {
            "status": "failed",
            "usage": self._usage,
            "error": {
                "code": ERROR_CODES.get(error.status, "server_error"),
                "message": str(error),
            },
        }
        yield self._event("response.failed", response=self.answer)

    def _event(self, kind: str, **values: Any) -> Event:
        event = {"type": kind, "sequence_number": self._number, **values}
        self._number += 1
        return event

    def _switch(self, kind: type[OpenReasoning] | type[OpenMessage]) -> Iterator[Event]:
        if not isinstance(self._item, kind):
            yield from self._close("completed")
            yield from self._open(kind())

    def _open(self, item: OpenItem) -> Iterator[Event]:
        self._item = item
        yield self._event(
            "response.output_item.added",
            output_index=len(self.answer["output"]),
            item=item.begun(),
        )
        if isinstance(item, OpenContent):
            yield self._part_event("response.content_part.added", item, part=item.part())

    def _extend(self, text: str, logprobs: Sequence[Item] = ()) -> Iterator[Event]:
        item = self._item
        assert item is not None
        item.extend(text, logprobs)
        if text or logprobs:
            more = {"logprobs": list(logprobs)} if isinstance(item, OpenMessage) else {}
            yield self._part_event(f"response.{item.kind}.delta", item, delta=text, **more)

    def _close(self, status: str) -> Iterator[Event]:
        item = self._item
        if item is None:
            return
        self._item = None
        yield self._part_event(f"response.{item.kind}.done", item, **item.done())
        if isinstance(item, OpenContent):
            yield self._part_event("response.content_part.done", item, part=item.part())
        values = item.ended(status)
        yield self._event(
            "response.output_item.done", output_index=len(self.answer["output"]), item=values
        )
        self.answer["output"] = [*self.answer["output"], values]

    def _part_event(self, kind: str, item: OpenItem, **values: Any) -> Event:
        index = {"content_index": 0} if isinstance(item, OpenContent) else {}
        place = {"item_id": item.item_id, "output_index": len(self.answer["output"]), **index}
        return self._event(kind, **place, **values)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _logprobs(entries: Sequence[Mapping[str, Any]] | None) -> list[Item]:
    """Log-probabilities of chat completions. Where those have no bytes, these have none of them."""
    return [
        {**_candidate(entry), "top_logprobs": [_candidate(other) for other in entry["top_logprobs"]]}
        for entry in entries or ()
    ]


def _candidate(entry: Mapping[str, Any]) -> Item:
    return {"token": entry["token"], "bytes": entry["bytes"] or [], "logprob": entry["logprob"]}
