"""The endpoints of the Messages API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tokenmill.server.chat_events import chat_events
from tokenmill.server.chat_prompt import chat_prompt
from tokenmill.server.connection import JsonResponse, read_json, while_connected
from tokenmill.server.fields import Fields
from tokenmill.server.messages.errors import error_body
from tokenmill.server.messages.events import MessageEvents
from tokenmill.server.messages.request import MessageRequest, read_count, read_message
from tokenmill.server.protocol import ChatEngine, check_model
from tokenmill.server.typed_events import stream_of


class MessageEndpoints:
    """Makes messages, and counts what they would read. names: of the model, the first one first."""

    def __init__(self, engine: ChatEngine, names: Sequence[str], max_body_bytes: int) -> None:
        self._engine = engine
        self._names = names
        self._max_body_bytes = max_body_bytes

    async def create(self, request: Request) -> Response:
        """The next message of a conversation."""
        body = await read_json(request, self._max_body_bytes)
        parsed = read_message(Fields(body), self._engine.default_sampling_params)
        model = check_model(parsed.chat.common.model, self._names)
        work = _Answer(self._engine, parsed, model)
        if parsed.chat.common.stream:
            return await stream_of(request, work.events(), lambda error: [error_body(error)])
        return JsonResponse(await while_connected(request, work.whole()))

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens the prompt of a message would have."""
        body = await read_json(request, self._max_body_bytes)
        chat = read_count(Fields(body), self._engine.default_sampling_params)
        check_model(chat.common.model, self._names)
        # A template may take a while, and must not hold up other requests' tokens.
        prompt = await asyncio.to_thread(chat_prompt, self._engine.tokenizer, chat)
        return JsonResponse({"input_tokens": len(prompt["prompt_token_ids"])})


class _Answer:
    """One message under way."""

    def __init__(self, engine: ChatEngine, request: MessageRequest, model: str) -> None:
        self._engine = engine
        self._request = request
        self._growing = MessageEvents(model, request.max_tokens)

    async def whole(self) -> dict[str, Any]:
        """The message in one piece."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        return self._growing.answer

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """The message as it grows."""
        growing = self._growing
        async with aclosing(chat_events(self._engine, self._request.chat)) as chat:
            async for part in chat:
                for event in growing.add(part):
                    yield event
        for event in growing.end():
            yield event
