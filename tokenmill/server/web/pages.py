"""The built-in web page: a chat and a look at the server, at ``/``.

Its files are shipped with the package and served as they are. The page asks nothing of other servers,
which its Content-Security-Policy makes sure of, and reaches this one through the public API only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import PurePath

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tokenmill.server import web

INDEX = "index.html"

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Where it is known, a text can't be made into HTML or a script even by mistake.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # After an update of the server, no old half of the page is used with a new one.
    "cache-control": "no-cache",
}
"""What every file of the page carries."""


def page_files() -> dict[str, bytes]:
    """The files, by name."""
    files = (resources.files(web) / "page").iterdir()
    return {file.name: file.read_bytes() for file in files if _suffix(file.name) in CONTENT_TYPES}


def web_routes() -> list[Route]:
    """Serve the page at ``/``, and what it loads below ``/web/``. Files are read once, now."""
    page = Page(page_files())
    return [
        Route("/", page.index, include_in_schema=False),
        Route("/web/{name}", page.file, include_in_schema=False),
    ]


class Page:
    """The endpoints."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._tags = {
            name: f'"{hashlib.sha256(data).hexdigest()[:32]}"' for name, data in files.items()
        }

    async def index(self, request: Request) -> Response:
        """The page itself."""
        return self._answer(request, INDEX)

    async def file(self, request: Request) -> Response:
        """What it loads."""
        name: str = request.path_params["name"]
        if name not in self._files or name == INDEX:
            raise HTTPException(404)
        return self._answer(request, name)

    def _answer(self, request: Request, name: str) -> Response:
        headers = {**HEADERS, "etag": self._tags[name]}
        if self._tags[name] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        headers["content-type"] = CONTENT_TYPES[_suffix(name)]
        return Response(self._files[name], headers=headers)


def _suffix(name: str) -> str:
    return PurePath(name).suffix
