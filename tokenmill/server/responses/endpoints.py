"""The endpoints of the Responses API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tokenmill.server.chat_events import chat_events
from tokenmill.server.connection import JsonResponse, read_json, while_connected
from tokenmill.server.errors import ApiError
from tokenmill.server.fields import Fields
from tokenmill.server.protocol import ChatEngine, ChatRequest, check_model
from tokenmill.server.responses.events import ResponseEvents
from tokenmill.server.responses.items import Item
from tokenmill.server.responses.request import ResponseRequest, read_response
from tokenmill.server.responses.store import ResponseStore, Stored
from tokenmill.server.responses.truncation import truncated
from tokenmill.server.typed_events import stream_of

DEFAULT_PAGE, MAX_PAGE = 20, 100
"""Items of one page of a list."""


class ResponseEndpoints:
    """Makes, shows and forgets responses. names: of the model, the first one first."""

    def __init__(
        self,
        engine: ChatEngine,
        names: Sequence[str],
        max_body_bytes: int,
        store: ResponseStore,
    ) -> None:
        self._engine = engine
        self._names = names
        self._max_body_bytes = max_body_bytes
        self._store = store

    async def create(self, request: Request) -> Response:
        """The next turn of a conversation."""
        body = await read_json(request, self._max_body_bytes)
        parsed = read_response(Fields(body), self._engine.default_sampling_params)
        model = check_model(parsed.chat.common.model, self._names)
        previous = None
        if parsed.previous is not None:
            previous = self._store.get(parsed.previous, "previous_response_id")
        chat = parsed.after(previous.conversation if previous is not None else [])
        if parsed.truncates:
            work = asyncio.to_thread(truncated, self._engine, chat)
            chat = await while_connected(request, work)
        answer = _Answer(self._engine, self._store, parsed, chat, previous, model)
        if parsed.chat.common.stream:
            return await stream_of(request, answer.events(), answer.failed)
        return JsonResponse(await while_connected(request, answer.whole()))

    async def stored(self, request: Request) -> Response:
        """A stored response, or its end, by the method."""
        return self._forget(request) if request.method == "DELETE" else self._show(request)

    def _show(self, request: Request) -> Response:
        if request.query_params.get("stream", "false") not in ("false", "0"):
            raise ApiError("a stored response is not streamed again; leave out stream", param="stream")
        return JsonResponse(self._store.get(request.path_params["id"]).answer)

    def _forget(self, request: Request) -> Response:
        response_id = request.path_params["id"]
        self._store.remove(response_id)
        return JsonResponse({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        """Always refused: only responses in the background could be cancelled."""
        self._store.get(request.path_params["id"])
        raise ApiError(
            "only a response that runs in the background could be cancelled, and this server has none; "
            "close the connection of a running request to cancel it"
        )

    async def input_items(self, request: Request) -> Response:
        """What a stored response was made from: a page of its input."""
        items = self._store.get(request.path_params["id"]).items
        return JsonResponse(_page(items, request))


class _Answer:
    """One response under way."""

    def __init__(
        self,
        engine: ChatEngine,
        store: ResponseStore,
        request: ResponseRequest,
        chat: ChatRequest,
        previous: Stored | None,
        model: str,
    ) -> None:
        self._engine = engine
        self._store = store
        self._request = request
        self._chat = chat
        self._previous = previous
        self._growing = ResponseEvents(model, request.shown)

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        return self._growing.answer

    def failed(self, error: ApiError) -> Iterator[dict[str, Any]]:
        """The events that tell of an error."""
        return self._growing.fail(error)

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """The answer as it grows."""
        growing = self._growing
        async with aclosing(chat_events(self._engine, self._chat)) as chat:
            async for part in chat:
                for event in growing.add(part):
                    yield event
        last = list(growing.end())
        if self._request.store:
            # Before the client knows that it is complete, and may refer to it.
            self._store.add(growing.answer, self._request.items, self._previous)
        for event in last:
            yield event


def _page(items: Sequence[Item], request: Request) -> dict[str, Any]:
    """Raises ApiError (400) for a wrong query."""
    query = request.query_params
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError("order must be asc or desc", param="order")
    limit = query.get("limit", str(DEFAULT_PAGE))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= MAX_PAGE):
        raise ApiError(f"limit must be a whole number from 1 to {MAX_PAGE}", param="limit")
    ordered = list(items) if order == "asc" else list(reversed(items))
    after = query.get("after")
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise ApiError(f"there is no item {after!r} in this input", param="after")
        ordered = ordered[ids.index(after) + 1 :]
    page = ordered[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": len(ordered) > len(page),
    }
