"""The HTTP front door: the OpenAI protocol in, engine requests out."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from tokenmill.config import ServerConfig
from tokenmill.server.about import About
from tokenmill.server.admission import Admission
from tokenmill.server.chat import ChatCompletion
from tokenmill.server.completions import Completion, read_completion
from tokenmill.server.connection import (
    DONE,
    ClientGone,
    EventStream,
    JsonResponse,
    event,
    read_json,
    while_connected,
)
from tokenmill.server.controls import Controls
from tokenmill.server.embeddings import EmbeddingEndpoints
from tokenmill.server.error_answers import error_answer
from tokenmill.server.errors import ApiError, api_error
from tokenmill.server.fields import Fields
from tokenmill.server.messages.endpoints import MessageEndpoints
from tokenmill.server.messages.errors import MESSAGES_PATH
from tokenmill.server.metrics import Metrics
from tokenmill.server.openapi.document import document_route
from tokenmill.server.operations import CONTROL_PATHS, Operations
from tokenmill.server.protocol import (
    ChatEngine,
    Common,
    ServingEngine,
    check_model,
    read_chat,
)
from tokenmill.server.request_log import RequestLog
from tokenmill.server.responses.endpoints import ResponseEndpoints
from tokenmill.server.responses.store import ResponseStore
from tokenmill.server.scoring import RERANK_PATHS, SCORE_PATHS, ScoringEndpoints
from tokenmill.server.security import Guard
from tokenmill.server.served_engine import ServedEngine
from tokenmill.server.tokens import TokenEndpoints
from tokenmill.server.tracing import Tracing, exporting_to
from tokenmill.server.web.pages import web_routes

log = logging.getLogger("tokenmill.server")

CLIENT_CLOSED_REQUEST = 499
"""What proxies log for a client that has left; nobody receives it."""


class Answering(Protocol):
    """A request under way."""

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        ...

    def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The answer in pieces."""
        ...


def create_app(
    engine: ServingEngine,
    *,
    model_names: Sequence[str],
    config: ServerConfig | None = None,
    controls: Controls | None = None,
) -> Starlette:
    """The application. model_names: what clients may call the model, the first one first.

    controls: None makes new ones from ``config``. Whoever made the engine shuts it down. Raises
    ConfigError if the configured key file can't be used.
    """
    if not model_names:
        raise ValueError("a server needs a name for its model")
    config = config or ServerConfig()
    controls = controls or Controls.of(config)
    metrics = Metrics(config.metrics_prefix, model_names[0], engine.max_model_len)
    served = ServedEngine(engine, config, metrics)
    server = Server(served, tuple(model_names), config.max_body_bytes)
    vectors = EmbeddingEndpoints(served, model_names, config.max_body_bytes)
    scoring = ScoringEndpoints(served, model_names, config.max_body_bytes)
    tokens = TokenEndpoints(served, model_names, config.max_body_bytes)
    about = About(served)
    operations = Operations(served, config, controls.gate, metrics)
    routes = [
        Route("/health", answering(operations.health)),
        Route("/ready", answering(operations.ready)),
        Route("/ping", answering(operations.health)),
        Route("/metrics", answering(operations.metrics)),
        Route("/v1/models", answering(server.models)),
        Route("/v1/models/{name:path}", answering(server.model)),
        Route("/v1/completions", answering(server.completions), methods=["POST"]),
        Route("/v1/chat/completions", answering(server.chat), methods=["POST"]),
        *_response_routes(
            ResponseEndpoints(
                served, model_names, config.max_body_bytes, ResponseStore(config.max_stored_bytes)
            )
        ),
        *_message_routes(MessageEndpoints(served, model_names, config.max_body_bytes)),
        Route("/v1/embeddings", answering(vectors.create), methods=["POST"]),
        Route("/tokenize", answering(tokens.tokenize), methods=["POST"]),
        Route("/detokenize", answering(tokens.detokenize), methods=["POST"]),
        Route("/version", answering(about.version)),
        Route("/load", answering(about.load)),
        *(Route(path, answering(scoring.score), methods=["POST"]) for path in SCORE_PATHS),
        *(Route(path, answering(scoring.rerank), methods=["POST"]) for path in RERANK_PATHS),
    ]
    if config.enable_sleep:
        routes += [
            Route("/sleep", answering(operations.sleep), methods=["POST"]),
            Route("/wake_up", answering(operations.wake_up), methods=["POST"]),
            Route("/is_sleeping", answering(operations.is_sleeping)),
        ]
    if config.web:
        routes += web_routes()
    routes.append(document_route(routes))
    return Starlette(
        routes=routes,
        middleware=_middleware(config, controls, _counting(metrics, routes), model_names[0]),
        exception_handlers={HTTPException: _http_error},
    )


def _middleware(
    config: ServerConfig, controls: Controls, answered: Callable[[Scope, int], None], model: str
) -> list[Middleware]:
    """What every request passes, the outermost first."""
    layers = [Middleware(RequestLog, lines=config.access_log, answered=answered)]
    if config.otlp_endpoint:
        provider = exporting_to(config.otlp_endpoint)
        layers.append(Middleware(Tracing, provider=provider, model=model))
    if config.cors_origins:
        # Outside of the guard: browsers ask for permission without a key, and must see refusals.
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(config.cors_origins),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )
        )
    return [
        *layers,
        Middleware(Guard, config=config, keys=controls.keys),
        Middleware(Admission, gate=controls.gate, config=config, ungated=CONTROL_PATHS),
    ]


def _counting(metrics: Metrics, routes: Sequence[Route]) -> Callable[[Scope, int], None]:
    """Counts answers by the path of their route: paths that clients make up would be without number."""
    paths: dict[object, str] = {route.endpoint: route.path_format for route in routes}

    def count(scope: Scope, status: int) -> None:
        metrics.http(scope["method"], paths.get(scope.get("endpoint"), "other"), status)

    return count


def _response_routes(responses: ResponseEndpoints) -> list[Route]:
    path = "/v1/responses"
    return [
        Route(path, answering(responses.create), methods=["POST"]),
        Route(f"{path}/{{id}}", answering(responses.stored), methods=["GET", "DELETE"]),
        Route(f"{path}/{{id}}/input_items", answering(responses.input_items)),
        Route(f"{path}/{{id}}/cancel", answering(responses.cancel), methods=["POST"]),
    ]


def _message_routes(messages: MessageEndpoints) -> list[Route]:
    path = MESSAGES_PATH
    return [
        Route(path, answering(messages.create), methods=["POST"]),
        Route(f"{path}/count_tokens", answering(messages.count_tokens), methods=["POST"]),
    ]


class Server:
    """The endpoints."""

    def __init__(self, engine: ChatEngine, names: tuple[str, ...], max_body_bytes: int) -> None:
        self._engine = engine
        self._names = names
        self._max_body_bytes = max_body_bytes
        self._created = int(time.time())

    async def models(self, request: Request) -> Response:
        """The names of the model."""
        return JsonResponse({"object": "list", "data": [self._model(name) for name in self._names]})

    async def model(self, request: Request) -> Response:
        """One of the names."""
        return JsonResponse(self._model(check_model(request.path_params["name"], self._names)))

    async def completions(self, request: Request) -> Response:
        """Continuations of prompts."""
        body = await read_json(request, self._max_body_bytes)
        parsed = read_completion(Fields(body), self._engine.default_sampling_params)
        model = check_model(parsed.common.model, self._names)
        return await self._answer(request, parsed.common, Completion(self._engine, parsed, model))

    async def chat(self, request: Request) -> Response:
        """The next message of a conversation."""
        body = await read_json(request, self._max_body_bytes)
        parsed = read_chat(Fields(body), self._engine.default_sampling_params)
        model = check_model(parsed.common.model, self._names)
        return await self._answer(request, parsed.common, ChatCompletion(self._engine, parsed, model))

    async def _answer(self, request: Request, common: Common, work: Answering) -> Response:
        if not common.stream:
            return JsonResponse(await while_connected(request, work.whole()))
        chunks = work.chunks()
        try:
            # Until the first piece is there, an error can still be told by the status.
            first = await while_connected(request, _next(chunks))
        except BaseException:
            await chunks.aclose()
            raise
        return EventStream(_events(first, chunks))

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "tokenmill",
            "max_model_len": self._engine.max_model_len,
        }


def answering(
    endpoint: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint with its errors turned into answers."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception as error:
            return _error_response(request, error)

    return guarded


def _error_response(request: Request, error: Exception) -> Response:
    answer = api_error(error)
    if answer.status == 500:
        log.error("internal error while answering", exc_info=error)
    return error_answer(request.url.path, answer)


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router refuses: unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}: {error.detail}"
    answer = ApiError(what, status=error.status_code)
    return error_answer(request.url.path, answer, error.headers)


async def _next(chunks: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any]:
    return await anext(chunks)


async def _events(
    first: dict[str, Any], chunks: AsyncGenerator[dict[str, Any], None]
) -> AsyncGenerator[bytes, None]:
    """Pieces as events. An error that comes too late for a status is an event of its own."""
    async with aclosing(chunks):
        yield event(first)
        try:
            async for chunk in chunks:
                yield event(chunk)
        except Exception as error:
            answer = api_error(error)
            if answer.status == 500:
                log.error("internal error in a stream", exc_info=error)
            yield event(answer.body())
    yield DONE
