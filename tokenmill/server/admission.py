"""Which requests are taken up, and how long clients may dawdle."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenmill.config import ServerConfig
from tokenmill.server.error_answers import error_answer
from tokenmill.server.errors import ApiError

SOON_S = 2
"""When to come back to a full queue: places get free with every answer that ends."""


def queue_full(there: int, do: str = "wait") -> ApiError:
    """Too many wait, or are inside, already."""
    return ApiError(
        f"the server is busy: {there} requests {do} already; try again soon",
        status=429,
        kind="rate_limit_error",
        code="queue_full",
        retry_after_s=SOON_S,
    )


class Gate:
    """Counts the requests inside, and can be closed to new ones.

    Belongs to one event loop, except ``in_flight``, which may be read anywhere.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self._reasons: dict[str, ApiError] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def refusal(self) -> ApiError | None:
        """What new requests are told; None while they are let in."""
        return next(iter(self._reasons.values()), None)

    def close(self, code: str, message: str, retry_after_s: int) -> None:
        """Refuse new requests (503) for this reason until it is lifted by ``open``."""
        self._reasons[code] = ApiError(
            message,
            status=503,
            kind="service_unavailable_error",
            code=code,
            retry_after_s=retry_after_s,
        )

    def open(self, code: str) -> None:
        """Lift a reason."""
        self._reasons.pop(code, None)

    def closed_for(self, code: str) -> bool:
        """Whether this is a reason that new requests are refused."""
        return code in self._reasons

    def enter(self) -> None:
        """One more inside."""
        self.in_flight += 1
        self._empty.clear()

    def leave(self) -> None:
        """One less."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self._empty.set()

    async def empty(self) -> None:
        """Wait until nobody is inside."""
        await self._empty.wait()


class Admission:
    """Middleware: requests that use the model go through the gate, and their bodies must come in time.

    ungated: paths whose POSTs don't use the model. (A client that doesn't take its answer is cut off by
    the kernel, see ``process.serve``; until then the answer waits in buffers of its own, and nobody
    else waits for it.)
    """

    def __init__(
        self, app: ASGIApp, *, gate: Gate, config: ServerConfig, ungated: frozenset[str]
    ) -> None:
        self._app = app
        self._gate = gate
        self._max_requests = config.max_requests
        self._body_s = config.body_timeout_s
        self._ungated = ungated

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] in self._ungated:
            await self._app(scope, receive, send)
            return
        refusal = self._gate.refusal
        if refusal is None and self._gate.in_flight >= self._max_requests:
            refusal = queue_full(self._gate.in_flight, "are served")
        if refusal is not None:
            answer = error_answer(scope["path"], refusal)
            await answer(scope, receive, send)
            return
        self._gate.enter()
        try:
            await self._app(scope, self._impatient(receive), send)
        finally:
            self._gate.leave()

    def _impatient(self, receive: Receive) -> Receive:
        """Within the time for the body; what comes after it (the client's leaving) may take forever."""
        if self._body_s is None:
            return receive
        deadline = asyncio.get_running_loop().time() + self._body_s
        complete = False

        async def received() -> Message:
            nonlocal complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise ApiError(
                    f"the body did not arrive within {self._body_s:g} seconds",
                    status=408,
                    kind="timeout_error",
                    code="body_timeout",
                ) from None
            complete = not message.get("more_body", False)
            return message

        return received
