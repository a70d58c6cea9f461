"""Small facts about the server: its version, whether it lives, how busy it is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tokenmill import __version__
from tokenmill.server.connection import JsonResponse
from tokenmill.server.protocol import ServingEngine


class About:
    """The endpoints."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine

    async def version(self, request: Request) -> Response:
        """Of tokenmill."""
        return JsonResponse({"version": __version__})

    async def load(self, request: Request) -> Response:
        """Answers and vectors that are being made, and those that wait for a place."""
        stats = self._engine.stats()
        return JsonResponse(
            {
                "server_load": stats.running + stats.waiting,
                "running": stats.running,
                "waiting": stats.waiting,
            }
        )
