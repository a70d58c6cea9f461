"""/v1/messages."""

from __future__ import annotations

from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.messages.errors import KINDS
from tokenmill.server.messages.request import read_count, read_message
from tokenmill.server.openapi.operation import COMMON_ERRORS, Answer, Body, Operation
from tokenmill.server.openapi.sampling import known
from tokenmill.server.openapi.schemas import (
    COUNT,
    OBJECT,
    TEXT,
    Schema,
    array,
    choice,
    constant,
    nullable,
    record,
    ref,
)

BLOCK: Schema = {
    "anyOf": [
        record({"type": constant("text"), "text": TEXT}),
        record({"type": constant("thinking"), "thinking": TEXT, "signature": TEXT}),
        record({"type": constant("tool_use"), "id": TEXT, "name": TEXT, "input": OBJECT}),
    ]
}

MESSAGE = record(
    {
        "id": TEXT,
        "type": constant("message"),
        "role": constant("assistant"),
        "model": TEXT,
        "content": array(BLOCK),
        "stop_reason": choice(
            "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
        ),
        "stop_sequence": nullable(TEXT),
        "usage": record(
            {
                "input_tokens": COUNT,
                "output_tokens": COUNT,
                "cache_creation_input_tokens": COUNT,
                "cache_read_input_tokens": COUNT,
            }
        ),
    }
)

ERROR = record(
    {
        "type": constant("error"),
        "error": record({"type": choice(*KINDS.values(), "api_error"), "message": TEXT}),
    }
)

EVENT: Schema = {
    "type": "object",
    "properties": {"type": TEXT},
    "required": ["type"],
    "description": "An event of the Messages API: message_start, content_block_delta, ... or error.",
}

MESSAGES = [{"role": "user", "content": "a"}]

KNOWN = known(
    messages={
        "minItems": 1,
        "items": {
            "type": "object",
            "properties": {"role": choice("user", "assistant"), "content": TEXT},
            "required": ["content", "role"],
        },
        "description": "Contents may also be lists of blocks: text, thinking, tool_use, tool_result.",
    },
    system={
        "anyOf": [TEXT, array(record({"type": constant("text"), "text": TEXT}), minItems=1)],
        "description": "The system prompt.",
    },
    max_tokens={"description": "Most tokens of the answer."},
    stop_sequences={"items": TEXT, "description": "Texts that end the answer."},
    tools={
        "items": {
            "type": "object",
            "properties": {
                "type": constant("custom"),
                "name": {**TEXT, "minLength": 1},
                "description": TEXT,
                "input_schema": OBJECT,
            },
            "required": ["input_schema", "name"],
        },
        "description": "What the model may call.",
    },
    chat_template_kwargs={"description": "Further arguments of the template."},
    **{
        "output_config.effort": {"description": "For the chat template."},
        "output_config.format": {"description": "A type, json_schema, and a schema."},
        "thinking.type": {
            "enum": ["enabled", "adaptive", "disabled"],
            "description": "Whether the chat template lets the model think first.",
        },
        "tool_choice.type": {
            "enum": ["auto", "none"],
            "description": "With tools, also any, or tool with a name.",
        },
    },
)

ERRORS = {
    status: Answer(COMMON_ERRORS[status], ref("MessageError"))
    for status in (400, 404, 408, 413, 429, 500, 503, 504)
}

OPERATIONS = (
    Operation(
        "/v1/messages",
        "post",
        "The next message of a conversation",
        {200: Answer("The message.", ref("Message"), EVENT), **ERRORS},
        body=Body(
            lambda fields: read_message(fields, SamplingParams()),
            {"messages": MESSAGES, "max_tokens": 8},
            KNOWN,
        ),
    ),
    Operation(
        "/v1/messages/count_tokens",
        "post",
        "How many tokens the prompt of a message would have",
        {200: Answer("The number.", record({"input_tokens": COUNT})), **ERRORS},
        body=Body(lambda fields: read_count(fields, SamplingParams()), {"messages": MESSAGES}, KNOWN),
    ),
)

COMPONENTS = {"Message": MESSAGE, "MessageError": ERROR}
