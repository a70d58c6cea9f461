"""Errors in the form that clients of the Messages API know.

Facts: https://docs.anthropic.com/en/api/errors.
"""

from __future__ import annotations

from typing import Any

from tokenmill.server.errors import ApiError

MESSAGES_PATH = "/v1/messages"
"""Below it, all errors have this form."""

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Kinds of errors by status; any other is an api_error, or the client's fault below 500."""


def error_body(error: ApiError) -> dict[str, Any]:
    """For JSON; also the event that ends a stream that failed."""
    kind = KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}
