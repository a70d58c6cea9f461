"""Streams whose events have types, as the Responses and the Messages API have them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tokenmill.server.connection import EventStream, encode_json, while_connected
from tokenmill.server.errors import ApiError, api_error

log = logging.getLogger("tokenmill.server")

Event = dict[str, Any]

SILENCE_S = 10.0
"""Longest time without a sign of life. Proxies give up on silent connections, and a long prompt may
take minutes to read."""

SIGN_OF_LIFE = b": still there\n\n"
"""A comment, which clients of server-sent events ignore."""


def typed_event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event, named by its ``type``."""
    return b"event: " + str(value["type"]).encode() + b"\ndata: " + encode_json(value) + b"\n\n"


async def stream_of(
    request: Request,
    events: AsyncGenerator[Event, None],
    failed: Callable[[ApiError], Iterable[Event]],
) -> Response:
    """The events as they come.

    failed: the events that tell of an error. An error before the first event is raised instead, so that
    the status can tell it, unless it comes so late that the stream had to begin.
    """
    first = asyncio.ensure_future(_next(events))
    try:
        await while_connected(request, _settled(first))
        if first.done():
            first.result()
    except BaseException:
        await _end(first, events)
        raise
    return EventStream(_encoded(first, events, failed))


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await anext(events)


async def _settled(task: asyncio.Future[Event]) -> bool:
    """Whether there is a result before a sign of life is due."""
    done, _ = await asyncio.wait({task}, timeout=SILENCE_S)
    return bool(done)


async def _end(task: asyncio.Future[Event], events: AsyncGenerator[Event, None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await events.aclose()


async def _encoded(
    task: asyncio.Future[Event],
    events: AsyncGenerator[Event, None],
    failed: Callable[[ApiError], Iterable[Event]],
) -> AsyncGenerator[bytes, None]:
    try:
        while True:
            while not await _settled(task):
                yield SIGN_OF_LIFE
            try:
                value = task.result()
            except StopAsyncIteration:
                return
            except Exception as error:
                answer = api_error(error)
                if answer.status == 500:
                    log.error("internal error in a stream", exc_info=error)
                for value in failed(answer):
                    yield typed_event(value)
                return
            yield typed_event(value)
            task = asyncio.ensure_future(_next(events))
    finally:
        await _end(task, events)
