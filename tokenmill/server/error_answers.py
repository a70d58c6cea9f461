"""Errors as answers, in the form that the clients of a path read."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from tokenmill.server.connection import JsonResponse
from tokenmill.server.errors import ApiError
from tokenmill.server.messages.errors import MESSAGES_PATH, error_body


def error_answer(path: str, error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request for this path. headers: besides those that the error has."""
    anthropic = path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")
    body = error_body(error) if anthropic else error.body()
    return JsonResponse(body, status_code=error.status, headers={**error.headers, **(headers or {})})
