"""The whole document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tokenmill import __version__
from tokenmill.server.connection import JsonResponse
from tokenmill.server.openapi import (
    answers,
    basics,
    chat,
    completions,
    messages,
    responses,
    tokens,
    vectors,
)
from tokenmill.server.openapi.operation import Operation

OPERATIONS: tuple[Operation, ...] = (
    *basics.OPERATIONS,
    *completions.OPERATIONS,
    *chat.OPERATIONS,
    *responses.OPERATIONS,
    *messages.OPERATIONS,
    *vectors.OPERATIONS,
    *tokens.OPERATIONS,
)

COMPONENTS: Mapping[str, Any] = {
    **answers.COMPONENTS,
    **completions.COMPONENTS,
    **chat.COMPONENTS,
    **responses.COMPONENTS,
    **messages.COMPONENTS,
    **vectors.COMPONENTS,
}


def document_route(others: Sequence[BaseRoute]) -> Route:
    """Serves the document of an application with these routes and this one."""

    async def answer(request: Request) -> Response:
        return JsonResponse(content)

    route = Route("/openapi.json", answer)
    content = document([*others, route])
    return route


def document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """OpenAPI 3.1 of an application with these routes (https://spec.openapis.org/oas/v3.1.1.html)."""
    there = {key for route in routes if isinstance(route, Route) for key in operations_of(route)}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        if (operation.path, operation.method) in there:
            paths.setdefault(operation.path, {})[operation.method] = operation.values()
    return {
        "openapi": "3.1.0",
        "info": {"title": "tokenmill", "version": __version__},
        "paths": paths,
        "components": {"schemas": dict(COMPONENTS)},
    }


def operations_of(route: Route) -> list[tuple[str, str]]:
    """Paths as OpenAPI writes them, and methods."""
    # Starlette answers HEAD wherever it answers GET.
    methods = sorted((route.methods or set()) - {"HEAD"})
    return [(route.path_format, method.lower()) for method in methods]
