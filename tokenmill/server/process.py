"""Runs the application until a signal asks it to stop, or the engine dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from tokenmill.config import ServerConfig
from tokenmill.server.controls import Controls
from tokenmill.server.http_protocol import ImpatientProtocol

log = logging.getLogger("tokenmill.server")

DRAINING = "draining"
COME_BACK_S = 5
"""When clients may try again: whoever restarts the server, or the one beside it, is there by then."""

LAST_WORDS_S = 10
"""Time for dropped requests to be told so, after which their connections are closed anyway."""


class DrainingServer(uvicorn.Server):
    """Lets running requests finish for a while, then has them dropped.

    Meanwhile the door stays open, so that new requests are told to go elsewhere (503) instead of
    failing to connect. drop: makes every running request fail; it may block, and may be called twice.
    is_dead: whether requests can't be served any more, which ends the server, too.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        controls: Controls,
        drain_s: int,
        drop: Callable[[], None],
        is_dead: Callable[[], bool],
    ) -> None:
        super().__init__(config)
        self.died = False
        self._gate = controls.gate
        self._drain_s = drain_s
        self._drop = drop
        self._is_dead = is_dead
        self._interrupts = 0
        self._hurry = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second. True if it is time to stop."""
        if not self.should_exit and self._is_dead():
            log.error("the engine is dead, so the server stops; its supervisor should restart it")
            self.died = True
            return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn once it is time to stop."""
        self._loop = asyncio.get_running_loop()
        self._gate.close(DRAINING, "the server is stopping; ask another one", COME_BACK_S)
        if self._interrupts > 1:
            self._hurry.set()
        if self._gate.in_flight:
            log.warning("stopping once %d running requests have finished", self._gate.in_flight)
        if not await self._emptied():
            log.warning("dropping %d requests that have not finished", self._gate.in_flight)
            await self._loop.run_in_executor(None, self._drop)
        await super().shutdown(sockets)

    async def _emptied(self) -> bool:
        """Whether all requests have finished before the time was up, or someone hurried."""
        waits = [asyncio.ensure_future(wait) for wait in (self._gate.empty(), self._hurry.wait())]
        try:
            await asyncio.wait(waits, timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self._gate.in_flight == 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM. The second SIGINT drops running requests, the third just leaves."""
        if sig == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts == 2 and self.should_exit:
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._hurry.set)
                return
        super().handle_exit(sig, frame)


def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    config: ServerConfig,
    controls: Controls,
    drop: Callable[[], None],
    is_dead: Callable[[], bool],
) -> bool:
    """Serve on a bound socket. Must be called on the main thread. False if ``is_dead`` ended it.

    SIGTERM and SIGINT stop it: new requests are refused, running ones may finish within
    ``config.drain_s`` seconds, then ``drop`` is called, which must make them fail. A second SIGINT
    drops them at once. SIGHUP reads the file of API keys, if there is one, again.
    """
    cut_off_stalled(listener, config.stall_timeout_s)
    settings = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        http=ImpatientProtocol,
        ws="none",
        access_log=False,
        timeout_graceful_shutdown=LAST_WORDS_S,
        server_header=False,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
    )
    server = DrainingServer(
        settings, controls=controls, drain_s=config.drain_s, drop=drop, is_dead=is_dead
    )
    with _signals(controls):
        server.run(sockets=[listener])
    return not server.died


def cut_off_stalled(listener: socket.socket, seconds: float | None) -> None:
    """Have the kernel close connections whose peers accept nothing, or are gone, for so long (tcp(7),
    TCP_USER_TIMEOUT). Accepted sockets inherit it. Does nothing where the system has no such option."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if seconds is not None and option is not None:
        listener.setsockopt(socket.IPPROTO_TCP, option, int(seconds * 1000))


@contextlib.contextmanager
def _signals(controls: Controls) -> Iterator[None]:
    """uvicorn raises the signal that stopped it once more, for the handlers that were there before."""
    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
        signal.SIGINT: _ignore,
        signal.SIGTERM: _ignore,
    }
    if controls.keys.from_file and hasattr(signal, "SIGHUP"):
        # Otherwise it means what it always means: the terminal is gone.
        handlers[signal.SIGHUP] = lambda number, frame: controls.keys.reload()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    """The signal has been obeyed."""
