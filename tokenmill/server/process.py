"""Runs the application until a signal asks it to stop."""

from __future__ import annotations

import logging
import signal
import socket
from types import FrameType

import uvicorn
from starlette.types import ASGIApp


def serve(
    app: ASGIApp, listener: socket.socket, *, shutdown_timeout_s: int = 30, access_log: bool = False
) -> None:
    """Serve on a bound socket. Must be called on the main thread.

    SIGTERM and SIGINT stop it: no new connections, running requests may finish within
    ``shutdown_timeout_s``, then they are dropped. A second SIGINT drops them at once.
    """
    if access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=access_log,
        timeout_graceful_shutdown=shutdown_timeout_s,
        server_header=False,
    )
    before = {number: signal.signal(number, _ignore) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        # uvicorn raises the signal that stopped it once more, for the handlers that were there before.
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    """The signal has been obeyed."""
