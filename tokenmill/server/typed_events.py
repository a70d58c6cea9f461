"""Streams whose events have types, as the Responses and the Messages API have them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tokenmill.server.connection import EventStream, encode_json, while_connected


def typed_event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event, named by its ``type``."""
    return b"event: " + str(value["type"]).encode() + b"\ndata: " + encode_json(value) + b"\n\n"


async def stream_of(request: Request, events: AsyncGenerator[dict[str, Any], None]) -> Response:
    """The events as they come, once the first is there: until then, an error is raised to the caller.

    The events must tell of later errors themselves.
    """
    try:
        first = await while_connected(request, _next(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(_encoded(first, events))


async def _next(events: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any]:
    return await anext(events)


async def _encoded(
    first: dict[str, Any], events: AsyncGenerator[dict[str, Any], None]
) -> AsyncGenerator[bytes, None]:
    try:
        yield typed_event(first)
        async for value in events:
            yield typed_event(value)
    finally:
        await events.aclose()
