"""A chat that goes as written down, whatever the engine would say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.chat_events import (
    ChatEvent,
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from tokenmill.server.protocol import ChatRequest
from tokenmill.server.translation import read_translated


@dataclass
class Script:
    """Stands in for ``chat_events``. requests: what was asked. pace: seconds
    before each event. An exception among events is raised."""

    events: list[ChatEvent | Exception]
    requests: list[ChatRequest] = field(default_factory=list)
    pace: float = 0.0

    async def __call__(self, engine: Any, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        self.requests.append(request)
        if isinstance(self.events[-1], Usage):
            yield replace(self.events[-1], completion_tokens=0, reasoning_tokens=0)
        for event in self.events:
            await asyncio.sleep(self.pace)
            if isinstance(event, Exception):
                raise event
            yield event


def whatever_its_form(
    body: Mapping[str, Any], defaults: SamplingParams, names: Mapping[str, str]
) -> ChatRequest:
    """Stands in for ``read_translated`` where the script keeps to the form that is asked for."""
    return read_translated({**body, "response_format": None}, defaults, names)


def thought(*texts: str) -> list[ChatEvent | Exception]:
    return [ReasoningDelta(0, text) for text in texts]


def said(*texts: str) -> list[ChatEvent | Exception]:
    return [TextDelta(0, text, None, ()) for text in texts]


def called(number: int, name: str, *arguments: str) -> list[ChatEvent | Exception]:
    return [
        ToolCallStart(0, number, f"call_{number}", name),
        *(ToolCallDelta(0, number, part) for part in arguments),
    ]


def ended(reason: str = "stop", stop_reason: int | str | None = None) -> list[ChatEvent | Exception]:
    return [Finished(0, reason, stop_reason), Usage(10, 7, 4, 2)]
