"""/v1/chat/completions."""

from __future__ import annotations

from tokenmill.engine.sampling_params import MAX_LOGPROBS, SamplingParams
from tokenmill.server.openapi.answers import (
    CHAT_LOGPROBS,
    PROMPT_LOGPROBS,
    STOP_REASON,
    TOKEN_IDS,
    event,
    finish_reason,
    head,
)
from tokenmill.server.openapi.operation import Answer, Body, Operation
from tokenmill.server.openapi.sampling import known
from tokenmill.server.openapi.schemas import (
    COUNT,
    FLAG,
    FUNCTION_NAME,
    NULL,
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
from tokenmill.server.protocol import read_chat

REASONING = {"reasoning_content": TEXT, "reasoning": TEXT}

CALL = record(
    {
        "id": TEXT,
        "type": constant("function"),
        "function": record({"name": TEXT, "arguments": TEXT}),
    }
)

CALL_DELTA = record(
    {"index": COUNT, "function": record({"arguments": TEXT}, {"name": TEXT})},
    {"id": TEXT, "type": constant("function")},
)

MESSAGE = record(
    {"role": constant("assistant"), "content": nullable(TEXT), "refusal": NULL},
    {**REASONING, "tool_calls": array(CALL)},
)

DELTA = record(
    {},
    {
        "role": constant("assistant"),
        "content": TEXT,
        **REASONING,
        "tool_calls": array(CALL_DELTA),
    },
)

CHOICE = {
    "index": COUNT,
    "logprobs": nullable(CHAT_LOGPROBS),
    "finish_reason": finish_reason("tool_calls"),
}

WHOLE = record(
    {
        **head("chat.completion"),
        "choices": array(
            record({**CHOICE, "message": MESSAGE, "stop_reason": STOP_REASON}, {"token_ids": TOKEN_IDS})
        ),
        "usage": ref("Usage"),
    },
    {"prompt_token_ids": TOKEN_IDS, "prompt_logprobs": PROMPT_LOGPROBS},
)

CHUNK = record(
    {
        **head("chat.completion.chunk"),
        "choices": array(
            record({**CHOICE, "delta": DELTA}, {"stop_reason": STOP_REASON, "token_ids": TOKEN_IDS})
        ),
    },
    {"usage": nullable(ref("Usage")), "prompt_token_ids": TOKEN_IDS},
)

FUNCTION: Schema = {
    "type": "object",
    "properties": {
        "name": FUNCTION_NAME,
        "description": nullable(TEXT),
        "parameters": nullable(OBJECT),
        "strict": nullable(FLAG),
    },
    "required": ["name"],
}

NAMED: Schema = {
    "type": "object",
    "properties": {
        "type": constant("function"),
        "function": {"type": "object", "properties": {"name": TEXT}, "required": ["name"]},
    },
    "required": ["function", "type"],
}

ALLOWED: Schema = {
    "type": "object",
    "properties": {
        "type": constant("allowed_tools"),
        "allowed_tools": {
            "type": "object",
            "properties": {"mode": choice("auto", "required"), "tools": array(NAMED)},
            "required": ["mode", "tools"],
        },
    },
    "required": ["allowed_tools", "type"],
}

MESSAGES = [{"role": "user", "content": "a"}]

KNOWN = known(
    messages={
        "minItems": 1,
        "items": OBJECT,
        "description": "Objects with role and content; the template says which roles there are.",
    },
    tools={
        "items": {
            "type": "object",
            "properties": {"type": constant("function"), "function": FUNCTION},
            "required": ["function", "type"],
        },
        "description": "Functions, each with a name of its own.",
    },
    tool_choice={
        "anyOf": [{"enum": ["none", "auto", "required"]}, NAMED, ALLOWED],
        "description": "Whether tools are called, or which.",
    },
    documents={"description": "Texts for the template."},
    chat_template_kwargs={"description": "Further arguments of the template."},
    add_generation_prompt={"description": "Whether the template begins the answer."},
    continue_final_message={"description": "Whether the answer goes on where the last message ends."},
    logprobs={"description": "Whether to give log-probabilities."},
    top_logprobs={
        "maximum": MAX_LOGPROBS,
        "description": "Alternatives at each position; needs logprobs.",
    },
    max_tokens={"minimum": 1, "description": "Most tokens of an answer."},
    max_completion_tokens={"description": "Most tokens of an answer; goes before max_tokens."},
)

OPERATIONS = (
    Operation(
        "/v1/chat/completions",
        "post",
        "The next message of a conversation",
        {200: Answer("The message.", ref("Chat"), event(ref("ChatChunk")))},
        body=Body(
            lambda fields: read_chat(fields, SamplingParams()),
            {"messages": MESSAGES},
            KNOWN,
            further=({"messages": MESSAGES, "logprobs": True, "top_logprobs": 1},),
        ),
        errors=(400, 404, 408, 413, 429, 500, 503, 504),
    ),
)

COMPONENTS = {"Chat": WHOLE, "ChatChunk": CHUNK}
