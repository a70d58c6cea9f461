"""Runs the application until a signal asks it to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

log = logging.getLogger("tokenmill.server")

LAST_WORDS_S = 10
"""Time for dropped requests to be told so, after which their connections are closed anyway."""


class DrainingServer(uvicorn.Server):
    """Lets running requests finish for a while, then has them dropped.

    drop: makes every running request fail. It may block, and may be called twice.
    """

    def __init__(self, config: uvicorn.Config, drain_s: int, drop: Callable[[], None]) -> None:
        super().__init__(config)
        self._drain_s = drain_s
        self._drop = drop
        self._interrupts = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn once it is time to stop."""
        self._loop = asyncio.get_running_loop()
        timer = self._loop.call_later(self._drain_s, self._drop_soon)
        if self._interrupts > 1:
            self._drop_soon()
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM. The second SIGINT drops running requests, the third just leaves."""
        if sig == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts == 2 and self.should_exit:
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._drop_soon)
                return
        super().handle_exit(sig, frame)

    def _drop_soon(self) -> None:
        if self.server_state.tasks:
            log.warning("dropping %d requests that have not finished", len(self.server_state.tasks))
        assert self._loop is not None
        self._loop.run_in_executor(None, self._drop)


def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    drop: Callable[[], None],
    drain_s: int = 30,
    access_log: bool = False,
) -> None:
    """Serve on a bound socket. Must be called on the main thread.

    SIGTERM and SIGINT stop it: no new connections, running requests may finish within ``drain_s``
    seconds, then ``drop`` is called, which must make them fail. A second SIGINT drops them at once.
    """
    if access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=access_log,
        timeout_graceful_shutdown=drain_s + LAST_WORDS_S,
        server_header=False,
    )
    before = {number: signal.signal(number, _ignore) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        # uvicorn raises the signal that stopped it once more, for the handlers that were there before.
        DrainingServer(config, drain_s, drop).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    """The signal has been obeyed."""
