"""Parts of answers that several endpoints share."""

from __future__ import annotations

from tokenmill.server.openapi.schemas import (
    COUNT,
    INTEGER,
    NUMBER,
    TEXT,
    Schema,
    array,
    choice,
    constant,
    nullable,
    record,
    ref,
    table,
)

ERROR = record(
    {"error": record({"message": TEXT, "type": TEXT, "param": nullable(TEXT), "code": nullable(TEXT)})}
)

USAGE = record(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": record({"cached_tokens": COUNT}),
    },
    {"completion_tokens_details": record({"reasoning_tokens": COUNT})},
)

TOKEN_IDS = array(COUNT)

PROMPT_LOGPROBS = array(
    nullable(
        table(record({"logprob": NUMBER, "rank": nullable(COUNT), "decoded_token": nullable(TEXT)}))
    )
)

STOP_REASON = {"anyOf": [TEXT, INTEGER, {"type": "null"}]}

CHAT_LOGPROB: Schema = {"token": TEXT, "logprob": NUMBER, "bytes": nullable(array(COUNT))}

CHAT_LOGPROBS = record(
    {
        "content": array(record({**CHAT_LOGPROB, "top_logprobs": array(record(CHAT_LOGPROB))})),
        "refusal": {"type": "null"},
    }
)

COMPONENTS: dict[str, Schema] = {"Error": ERROR, "Usage": USAGE}


def finish_reason(*more: str) -> Schema:
    """Why an answer ended; null while it goes on."""
    return choice("stop", "length", "abort", *more, None)


def head(kind: str) -> dict[str, Schema]:
    """What every answer of the OpenAI protocol begins with."""
    return {"id": TEXT, "object": constant(kind), "created": COUNT, "model": TEXT}


def event(chunk: Schema) -> Schema:
    """An event of a stream: a piece, or the error that ends it."""
    return {"anyOf": [chunk, ref("Error")]}
