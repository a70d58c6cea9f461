"""What is known of the HTTP request under way, its id, and the line that the log gets at its end."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("tokenmill.requests")

ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""What may stand in a log line and a header without harm."""


@dataclass
class RequestNote:
    """What is learnt about one HTTP request while it is served.

    started: seconds on the monotonic clock. admitted: whether it has its place among the waiting.
    first_token_s: seconds until the first token. reasons: how its answers ended.
    """

    request_id: str
    started: float = field(default_factory=time.monotonic)
    admitted: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    first_token_s: float | None = None
    reasons: list[str] = field(default_factory=list)


_current: ContextVar[RequestNote | None] = ContextVar("request_note", default=None)


def current_note() -> RequestNote | None:
    """The note of the HTTP request that this task serves; None outside of one."""
    return _current.get()


def request_id_of(given: str | None) -> str:
    """The client's own id if it is harmless, else a new one."""
    return given if given is not None and ID.fullmatch(given) else uuid.uuid4().hex


class RequestLog:
    """Middleware: every answer carries ``x-request-id``; with ``lines``, each request is logged once.

    Neither prompts nor answers nor query strings are ever part of a line. answered: told of each
    request and the status of its answer; 0 if none was begun.
    """

    def __init__(self, app: ASGIApp, *, lines: bool, answered: Callable[[Scope, int], None]) -> None:
        self._app = app
        self._lines = lines
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        note = RequestNote(request_id_of(request.headers.get("x-request-id")))
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = note.request_id
            await send(message)

        token = _current.set(note)
        try:
            await self._app(scope, receive, noted)
        finally:
            _current.reset(token)
            self._answered(scope, status)
            if self._lines:
                log.info("%s", line_of(request, note, status))


def line_of(request: Request, note: RequestNote, status: int) -> str:
    """One request as a line of ``name=value`` pairs. status: 0 if no answer was begun."""
    client = request.client.host if request.client else "-"
    parts = [
        f"id={note.request_id}",
        f"client={client}",
        f"{request.method} {_printable(request.scope['path'])}",
        f"status={status}",
        f"seconds={time.monotonic() - note.started:.3f}",
    ]
    if note.prompt_tokens:
        parts += [
            f"prompt_tokens={note.prompt_tokens}",
            f"cached_tokens={note.cached_tokens}",
            f"generated_tokens={note.generated_tokens}",
        ]
    if note.first_token_s is not None:
        parts.append(f"first_token_seconds={note.first_token_s:.3f}")
    if note.reasons:
        parts.append(f"finished={','.join(sorted(set(note.reasons)))}")
    return " ".join(parts)


def _printable(path: str) -> str:
    """A path that can't forge lines, cut to a sensible length."""
    return path[:200].encode("unicode_escape").decode().replace(" ", "%20")
