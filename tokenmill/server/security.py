"""Who may ask, from where: API keys, names of the host, origins of web pages."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Collection, Iterable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tokenmill.config import ServerConfig
from tokenmill.errors import ConfigError
from tokenmill.server.error_answers import error_answer
from tokenmill.server.errors import ApiError

log = logging.getLogger("tokenmill.server")

OPEN_PATHS = frozenset({"/", "/health", "/ping", "/ready"})
OPEN_PREFIXES = ("/web/",)
"""Served without a key: what tells only that the server is there, and the page that asks for one."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANY_ADDRESS = ("0.0.0.0", "::", "")


class ApiKeys:
    """The keys that open the server. None at all leaves it open.

    Only hashes are held, and every one is compared in full, so the time that a comparison takes tells
    nothing about any key.
    """

    def __init__(self, given: Iterable[str] = (), file: Path | None = None) -> None:
        """Raises ConfigError if the file can't be read or holds no key."""
        self._given = tuple(map(_digest, given))
        self._file = file
        self._digests = self._given + self._read()

    @property
    def required(self) -> bool:
        """Whether a key must be shown."""
        return bool(self._digests)

    @property
    def from_file(self) -> bool:
        """Whether reading a file again may change them."""
        return self._file is not None

    def accept(self, key: str) -> bool:
        """Whether this is one of them."""
        digest, found = _digest(key), False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found

    def reload(self) -> None:
        """Read the file again. If that fails, the present keys stay, and the log says so."""
        try:
            self._digests = self._given + self._read()
        except ConfigError as error:
            log.error("the API keys were not reloaded: %s", error)
        else:
            log.warning("read the API keys again: there are %d", len(self._digests))

    def _read(self) -> tuple[bytes, ...]:
        if self._file is None:
            return ()
        try:
            lines = self._file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the API key file {self._file}: {error}") from error
        entries = (line.strip() for line in lines)
        keys = [entry for entry in entries if entry and not entry.startswith("#")]
        if not keys:
            # Taking this for "no keys needed" would open the server by a slip of the editor.
            raise ConfigError(f"the API key file {self._file} holds no key; write one on each line")
        return tuple(map(_digest, keys))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def shown_key(headers: Headers) -> str | None:
    """The key shown: ``Authorization: Bearer KEY`` (OpenAI) or ``x-api-key: KEY`` (Anthropic)."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key")


def host_name(value: str) -> str:
    """The name in a Host header, in lower case, without port and brackets; "" if it is none."""
    try:
        return (urlsplit(f"//{value}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def default_hosts(bound: str) -> tuple[str, ...] | None:
    """Names that a server bound to this address answers to; None (any) if it is bound to all of them,
    because its names can't be known then."""
    return None if bound in ANY_ADDRESS else tuple(dict.fromkeys((*LOOPBACK, bound.lower())))


def is_loopback(bound: str) -> bool:
    """Whether only this machine reaches a server that is bound to this address."""
    return bound in LOOPBACK or bound.startswith("127.")


class Guard:
    """Middleware: refuses requests to foreign host names, of foreign pages, and without a key.

    A browser lets any page send a POST to any address, this machine included, and tells its origin
    with it. So what has an origin is refused unless it is our own or allowed by ``cors_origins``: not
    seeing the answer would not keep a page from using the model.
    """

    def __init__(self, app: ASGIApp, *, config: ServerConfig, keys: ApiKeys) -> None:
        self._app = app
        self._hosts = _names(config.allowed_hosts)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in config.cors_origins)
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
            return
        more = {"www-authenticate": "Bearer"} if refusal.status == 401 else None
        answer = error_answer(scope["path"], refusal, more)
        await answer(scope, receive, send)

    def _refusal(self, method: str, path: str, headers: Headers) -> ApiError | None:
        host = headers.get("host", "")
        # Without this, a page whose name is made to point here could talk to us as if we were its own.
        if self._hosts is not None and host_name(host) not in self._hosts:
            return ApiError(
                "this server does not answer to that host name; its owner can allow it with "
                "--allowed-hosts",
                status=421,
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is not None and method not in ("GET", "HEAD") and not self._own(origin, host):
            return ApiError(
                "pages of that origin may not use this server; its owner can allow it with "
                "--cors-origins",
                status=403,
                code="origin_not_allowed",
            )
        if not self._keys.required or path in OPEN_PATHS or path.startswith(OPEN_PREFIXES):
            return None
        key = shown_key(headers)
        if key is None:
            problem = "this server needs an API key: send 'Authorization: Bearer KEY'"
        elif not self._keys.accept(key):
            problem = "this API key is not valid here"
        else:
            return None
        return ApiError(problem, status=401, kind="authentication_error", code="invalid_api_key")

    def _own(self, origin: str, host: str) -> bool:
        origin = origin.lower()
        if "*" in self._origins or origin in self._origins:
            return True
        scheme, separator, name = origin.partition("://")
        return bool(separator) and scheme in ("http", "https") and name == host.lower()


def _names(hosts: Collection[str] | None) -> frozenset[str] | None:
    if hosts is None or "*" in hosts:
        return None
    return frozenset(host.lower() for host in hosts)
