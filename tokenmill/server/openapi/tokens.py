"""Tokenizing, and small facts about the server."""

from __future__ import annotations

from tokenmill.server.openapi import chat
from tokenmill.server.openapi.answers import TOKEN_IDS
from tokenmill.server.openapi.operation import Answer, Body, Operation
from tokenmill.server.openapi.schemas import COUNT, TEXT, array, nullable, record
from tokenmill.server.tokens import read_detokenize, read_tokenize

ERRORS = (400, 404, 408, 413, 500, 503)

TOKENS = record(
    {
        "count": COUNT,
        "max_model_len": COUNT,
        "tokens": TOKEN_IDS,
        "token_strs": nullable(array(TEXT)),
    }
)

OPERATIONS = (
    Operation(
        "/tokenize",
        "post",
        "The tokens of a text, or of messages through the chat template",
        {200: Answer("Token ids, and their names if asked for.", TOKENS)},
        body=Body(
            read_tokenize,
            {"prompt": "a"},
            {
                **chat.KNOWN,
                "prompt": {"description": "A text; leave it out if there are messages."},
                "add_special_tokens": {
                    "description": "Whether the text begins and ends as the model wants it."
                },
                "return_token_strs": {"description": "Whether to name the tokens."},
            },
            further=({"messages": chat.MESSAGES},),
            required=(),
        ),
        errors=ERRORS,
    ),
    Operation(
        "/detokenize",
        "post",
        "The text of token ids",
        {200: Answer("The text, special tokens included.", record({"prompt": TEXT}))},
        body=Body(read_detokenize, {"tokens": [1]}, {"tokens": {"description": "Token ids."}}),
        errors=ERRORS,
    ),
    Operation(
        "/version", "get", "The server's version", {200: Answer("It.", record({"version": TEXT}))}
    ),
    Operation(
        "/load",
        "get",
        "How busy the server is",
        {
            200: Answer(
                "Answers and vectors that are being made, that wait, and both.",
                record({"server_load": COUNT, "running": COUNT, "waiting": COUNT}),
            )
        },
    ),
)
