"""Health, the served models, and this document."""

from __future__ import annotations

from tokenmill.server.openapi.operation import Answer, Operation
from tokenmill.server.openapi.schemas import COUNT, OBJECT, TEXT, array, constant, record

STATUS = record({"status": TEXT})

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
        "Whether the engine lives",
        {200: Answer("It lives.", STATUS), 503: Answer("It does not.", STATUS)},
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
