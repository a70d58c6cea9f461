"""One HTTP connection: bodies in, JSON and event streams out, and noticing when the client has left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenmill.server.errors import ApiError

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"

MOST_READ_ON_BYTES = 64 << 20
MOST_READ_ON_S = 5.0
"""How much of a body that is too large is read and thrown away, and for how long."""


class ClientGone(Exception):
    """The client has closed the connection, so nobody waits for an answer."""


async def read_json(request: Request, max_bytes: int) -> Any:
    """The body, parsed.

    Raises ApiError: 413 if it is longer than ``max_bytes`` (no more than that is ever held), 400 if it
    is not JSON. Raises ClientGone if the client leaves while it sends.
    """
    too_large = ApiError(
        f"the body is larger than the {max_bytes} bytes that this server accepts",
        status=413,
        code="body_too_large",
    )
    body = bytearray()
    announced = request.headers.get("content-length", "")
    try:
        fits = not (announced.isascii() and announced.isdigit() and int(announced) > max_bytes)
        stream = request.stream()
        while fits and (chunk := await anext(stream, None)) is not None:
            body += chunk
            fits = len(body) <= max_bytes
        if not fits:
            body.clear()
            await _read_on(stream)
            raise too_large
    except ClientDisconnect:
        raise ClientGone from None
    try:
        return json.loads(bytes(body), parse_constant=_no_constant)
    except RecursionError:
        raise ApiError("the body is nested too deeply") from None
    except ValueError as error:  # also what is not UTF-8
        raise ApiError(f"the body is not valid JSON: {error}") from None


async def _read_on(stream: AsyncIterator[bytes]) -> None:
    """Let a client go on sending for a while.

    If the connection were closed at once, a client in the middle of its body would see it break, and
    never read why.
    """
    left = MOST_READ_ON_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(MOST_READ_ON_S):
            async for chunk in stream:
                left -= len(chunk)
                if left < 0:
                    return


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def encode_json(value: Any) -> bytes:
    """UTF-8 JSON; half a surrogate pair, which has no UTF-8, becomes a question mark."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="replace")


class JsonResponse(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        return encode_json(content)


def event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + encode_json(value) + b"\n\n"


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled if the client leaves; then ClientGone is raised.

    The body must have been read already.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        await _cancel(task, watcher)


class EventStream(Response):
    """Server-sent events. Once the client has left, or the answer is complete, ``events`` is closed."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        # X-Accel-Buffering: proxies that know it pass events on at once.
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events end or the client leaves."""
        sender = asyncio.ensure_future(self._send(send))
        watcher = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({sender, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
        finally:
            await _cancel(sender, watcher)
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for data in self._events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what is still running and wait until it has cleaned up."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
