"""/v1/messages."""

from __future__ import annotations

from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.messages.errors import KINDS
from tokenmill.server.messages.request import read_count, read_message
from tokenmill.server.openapi.operation import COMMON_ERRORS, Answer, Body, Operation
from tokenmill.server.openapi.sampling import known
from tokenmill.server.openapi.schemas import (
    COUNT,
    FUNCTION_NAME,
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

TEXT_BLOCK: Schema = {
    "type": "object",
    "properties": {"type": constant("text"), "text": TEXT},
    "required": ["text", "type"],
}

NESTED: dict[str, Schema] = {
    "output_config.effort": {"description": "For the chat template."},
    "output_config.format": {"description": "The form of the answer."},
    "output_config.format.type": {"const": "json_schema"},
    "output_config.format.schema": {"description": "Required with a type."},
    "thinking.type": {
        "enum": ["enabled", "adaptive", "disabled"],
        "description": "Whether the chat template lets the model think first.",
    },
    "tool_choice.type": {
        "enum": ["auto", "none"],
        "description": "With tools, also any, or tool with a name.",
    },
}

CONVERSATION = known(
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
        "anyOf": [TEXT, array(TEXT_BLOCK)],
        "description": "The system prompt.",
    },
    tools={
        "items": {
            "type": "object",
            "properties": {
                "type": {"enum": ["custom", None]},
                "name": FUNCTION_NAME,
                "description": nullable(TEXT),
                "input_schema": OBJECT,
            },
            "required": ["input_schema", "name"],
        },
        "description": "What the model may call.",
    },
    chat_template_kwargs={"description": "Further arguments of the template."},
    **NESTED,
)

MESSAGE_FIELDS = {
    **CONVERSATION,
    "max_tokens": {"description": "Most tokens of the answer."},
    "stop_sequences": {"items": TEXT, "description": "Texts that end the answer."},
}

MORE = {"system": "a", "tool_choice": {"type": "none"}}

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
            MESSAGE_FIELDS,
            further=({"messages": MESSAGES, "max_tokens": 8, **MORE},),
        ),
    ),
    Operation(
        "/v1/messages/count_tokens",
        "post",
        "How many tokens the prompt of a message would have",
        {200: Answer("The number.", record({"input_tokens": COUNT})), **ERRORS},
        body=Body(
            lambda fields: read_count(fields, SamplingParams()),
            {"messages": MESSAGES},
            CONVERSATION,
            further=({"messages": MESSAGES, **MORE},),
        ),
    ),
)

COMPONENTS = {"Message": MESSAGE, "MessageError": ERROR}
