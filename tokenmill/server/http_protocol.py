"""uvicorn's HTTP/1.1, for clients that may never finish asking."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT_S = 20.0
"""For a client to send a whole request head, from its first byte or the connection's beginning."""


class ImpatientProtocol(H11Protocol):
    """Closes connections on which no request arrives. uvicorn alone would wait for ever."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the loop."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        super().data_received(data)
        # Between two requests, uvicorn's own timer closes connections on which nothing arrives at all.
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._expect_head()
        else:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._stop_timer()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._give_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self.transport.abort()
