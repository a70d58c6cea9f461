"""Health, the served models, and this document."""

from __future__ import annotations

from tokenmill.server.openapi.operation import Answer, Operation
from tokenmill.server.openapi.schemas import COUNT, FLAG, OBJECT, TEXT, array, constant, record

STATUS = record({"status": TEXT})

SLEEPING = record({"is_sleeping": FLAG})

MODEL = record(
    {
        "id": TEXT,
        "object": constant("model"),
        "created": COUNT,
        "owned_by": TEXT,
        "max_model_len": COUNT,
    }
)

OPERATIONS = (
    Operation(
        "/health",
        "get",
        "Whether the engine lives and moves",
        {200: Answer("It does.", STATUS), 503: Answer("It does not; restart the server.", STATUS)},
    ),
    Operation(
        "/ping",
        "get",
        "The same as /health, for those who ask here",
        {200: Answer("It lives.", STATUS), 503: Answer("It does not; restart the server.", STATUS)},
    ),
    Operation(
        "/ready",
        "get",
        "Whether new requests are welcome",
        {200: Answer("They are.", STATUS), 503: Answer("Send them elsewhere for a while.", STATUS)},
    ),
    Operation(
        "/metrics",
        "get",
        "Figures for Prometheus",
        {200: Answer("Text exposition 0.0.4.", TEXT, media_type="text/plain")},
    ),
    Operation(
        "/sleep",
        "post",
        "Lets running requests finish, then gives the cache's memory back",
        {200: Answer("It sleeps.", record({"is_sleeping": FLAG, "freed_bytes": COUNT}))},
        errors=(400, 503),
    ),
    Operation(
        "/wake_up",
        "post",
        "Welcomes requests again",
        {200: Answer("It is awake.", SLEEPING)},
    ),
    Operation(
        "/is_sleeping",
        "get",
        "Whether the engine sleeps",
        {200: Answer("Whether it does.", SLEEPING)},
    ),
    Operation(
        "/v1/models",
        "get",
        "The served names of the model",
        {200: Answer("The names.", record({"object": constant("list"), "data": array(MODEL)}))},
    ),
    Operation(
        "/v1/models/{name}",
        "get",
        "One of the names",
        {200: Answer("The model.", MODEL)},
        errors=(404,),
        parameters={"name": "a served name"},
    ),
    Operation("/openapi.json", "get", "This document", {200: Answer("OpenAPI 3.1.", OBJECT)}),
)
