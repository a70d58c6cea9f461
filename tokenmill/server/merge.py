"""Several answers of the engine as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from tokenmill.engine.outputs import RequestOutput


async def merge(
    streams: Sequence[AsyncIterator[RequestOutput]],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Outputs of all streams as they come, each with its stream's index.

    An error of one ends them all. Closing the generator closes every stream.
    """
    if len(streams) == 1:
        only: Any = streams[0]
        async with aclosing(only):
            async for out in only:
                yield 0, out
        return
    queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue()

    async def pump(index: int, stream: Any) -> None:
        try:
            async with aclosing(stream):
                async for out in stream:
                    queue.put_nowait((index, out))
        except Exception as error:
            queue.put_nowait((index, error))
        else:
            queue.put_nowait((index, None))

    tasks = [asyncio.ensure_future(pump(*entry)) for entry in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
