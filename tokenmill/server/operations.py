"""Endpoints for those who run the server: health, readiness, figures, sleep."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tokenmill.config import ServerConfig
from tokenmill.server.admission import Gate
from tokenmill.server.connection import JsonResponse, while_connected
from tokenmill.server.errors import ApiError
from tokenmill.server.metrics import CONTENT_TYPE, Metrics
from tokenmill.server.protocol import ServingEngine

ASLEEP = "asleep"
WAKING_S = 5

CONTROL_PATHS = frozenset({"/sleep", "/wake_up"})
"""POSTs that pass a closed gate."""


class Operations:
    """The endpoints. gate: closed while the engine sleeps."""

    def __init__(
        self, engine: ServingEngine, config: ServerConfig, gate: Gate, metrics: Metrics
    ) -> None:
        self._engine = engine
        self._config = config
        self._gate = gate
        self._metrics = metrics

    async def health(self, request: Request) -> Response:
        """200 while the engine's thread lives and moves, else 503: then only a restart helps."""
        if self._engine.is_dead:
            return JsonResponse({"status": "dead"}, status_code=503)
        if self._engine.busy_s > self._config.step_timeout_s:
            return JsonResponse({"status": "hanging"}, status_code=503)
        return JsonResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 while new requests are welcome, else 503: send them elsewhere for a while."""
        if self._gate.refusal is None:
            return await self.health(request)
        refusal = self._gate.refusal
        return JsonResponse({"status": refusal.code}, status_code=503, headers=refusal.headers)

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        text = self._metrics.render(self._engine.stats(), asleep=self._gate.closed_for(ASLEEP))
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def sleep(self, request: Request) -> Response:
        """Refuse new requests, let running ones finish, then give the cache's memory back."""
        if request.query_params.get("level", "1") != "1":
            raise ApiError(
                "only level 1 is possible: weights are packed while loading, and can't be dropped "
                "without loading them again; stop the process to have their memory back",
                param="level",
            )
        self._gate.close(ASLEEP, "the engine sleeps; POST /wake_up wakes it", WAKING_S)
        try:
            freed = await while_connected(request, self._put_to_sleep())
        except BaseException:
            self._gate.open(ASLEEP)
            raise
        return JsonResponse({"is_sleeping": True, "freed_bytes": freed})

    async def _put_to_sleep(self) -> int:
        await self._gate.empty()
        return await self._engine.give_back_memory()

    async def wake_up(self, request: Request) -> Response:
        """Welcome requests again; memory comes back as they need it."""
        self._gate.open(ASLEEP)
        return JsonResponse({"is_sleeping": False})

    async def is_sleeping(self, request: Request) -> Response:
        """Whether the engine sleeps."""
        return JsonResponse({"is_sleeping": self._gate.closed_for(ASLEEP)})
