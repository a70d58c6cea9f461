"""Errors in the form that clients of the OpenAI API know."""

from __future__ import annotations

from typing import Any

from tokenmill.errors import EngineDeadError, RequestError, TokenmillError


class ApiError(TokenmillError):
    """An answer other than 200.

    status: of HTTP. kind, code, param: ``type``, ``code`` and ``param`` of the body. retry_after_s:
    when the client may come back.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """What the answer carries besides its body."""
        return {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}

    def body(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "error": {
                "message": str(self),
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def api_error(error: Exception) -> ApiError:
    """The answer for an error. What only programmers should know stays in the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(str(error))
    if isinstance(error, EngineDeadError):
        return ApiError(str(error), status=503, kind="service_unavailable_error", code="engine_dead")
    return ApiError(
        "the server met an internal error; its log says more",
        status=500,
        kind="internal_server_error",
    )
