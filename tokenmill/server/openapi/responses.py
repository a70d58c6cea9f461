"""/v1/responses."""

from __future__ import annotations

from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.openapi.operation import Answer, Body, Operation
from tokenmill.server.openapi.sampling import known
from tokenmill.server.openapi.schemas import (
    COUNT,
    FLAG,
    FUNCTION_NAME,
    NULL,
    NUMBER,
    OBJECT,
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
from tokenmill.server.responses.items import MAX_ITEMS, READERS
from tokenmill.server.responses.request import (
    INCLUDABLE,
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    MAX_TOP_LOGPROBS,
    read_response,
)

STATUS = choice("in_progress", "completed", "incomplete")

LOGPROB: dict[str, Schema] = {"token": TEXT, "logprob": NUMBER, "bytes": array(COUNT)}

LOGPROBS = array(record({**LOGPROB, "top_logprobs": array(record(LOGPROB))}))

OUTPUT_TEXT = record(
    {
        "type": constant("output_text"),
        "text": TEXT,
        "annotations": array({"not": {}}),
        "logprobs": LOGPROBS,
    }
)

INPUT_TEXT = record({"type": constant("input_text"), "text": TEXT})

REASONING_TEXT = record({"type": constant("reasoning_text"), "text": TEXT})


def _item(kind: str, more: dict[str, Schema]) -> Schema:
    return record({"type": constant(kind), "id": TEXT, "status": STATUS, **more})


OUTPUT_MESSAGE = _item("message", {"role": constant("assistant"), "content": array(OUTPUT_TEXT)})

REASONING = _item("reasoning", {"summary": array({"not": {}}), "content": array(REASONING_TEXT)})

CALL = _item("function_call", {"call_id": TEXT, "name": TEXT, "arguments": TEXT})

CALL_OUTPUT = _item(
    "function_call_output", {"call_id": TEXT, "output": {"anyOf": [TEXT, array(INPUT_TEXT)]}}
)

INPUT_MESSAGE = _item(
    "message", {"role": choice("user", "system", "developer"), "content": array(INPUT_TEXT)}
)

OUTPUT_ITEM: Schema = {"anyOf": [OUTPUT_MESSAGE, REASONING, CALL]}

INPUT_ITEM: Schema = {"anyOf": [INPUT_MESSAGE, OUTPUT_MESSAGE, REASONING, CALL, CALL_OUTPUT]}

USAGE = record(
    {
        "input_tokens": COUNT,
        "input_tokens_details": record({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": record({"reasoning_tokens": COUNT}),
        "total_tokens": COUNT,
    }
)

TOOL = record(
    {
        "type": constant("function"),
        "name": TEXT,
        "description": nullable(TEXT),
        "parameters": nullable(OBJECT),
        "strict": nullable(FLAG),
    }
)

RESPONSE = record(
    {
        "id": TEXT,
        "object": constant("response"),
        "created_at": COUNT,
        "completed_at": nullable(COUNT),
        "status": choice("in_progress", "completed", "incomplete", "failed"),
        "error": nullable(record({"code": TEXT, "message": TEXT})),
        "incomplete_details": nullable(record({"reason": constant("max_output_tokens")})),
        "model": TEXT,
        "output": array(OUTPUT_ITEM),
        "usage": nullable(USAGE),
        "background": {"const": False},
        "instructions": nullable(TEXT),
        "max_output_tokens": nullable(COUNT),
        "max_tool_calls": nullable(COUNT),
        "metadata": table(TEXT),
        "parallel_tool_calls": FLAG,
        "previous_response_id": nullable(TEXT),
        "prompt_cache_key": nullable(TEXT),
        "reasoning": record({"effort": nullable(TEXT), "summary": NULL}),
        "safety_identifier": nullable(TEXT),
        "service_tier": constant("default"),
        "store": FLAG,
        "temperature": NUMBER,
        "text": record({"format": OBJECT}),
        "tool_choice": {"anyOf": [TEXT, OBJECT]},
        "tools": array(TOOL),
        "top_logprobs": COUNT,
        "top_p": NUMBER,
        "truncation": choice("auto", "disabled"),
        "user": nullable(TEXT),
    }
)

EVENT: Schema = {
    "type": "object",
    "properties": {"type": TEXT, "sequence_number": COUNT},
    "required": ["sequence_number", "type"],
    "description": "An event of the OpenAI API: response.created, response.output_text.delta, ...",
}

ITEMS = record(
    {
        "object": constant("list"),
        "data": array(INPUT_ITEM),
        "first_id": TEXT,
        "last_id": TEXT,
        "has_more": FLAG,
    }
)

DELETED = record({"id": TEXT, "object": constant("response"), "deleted": {"const": True}})

NESTED: dict[str, Schema] = {
    "text.format.type": {
        "enum": ["text", "json_object", "json_schema"],
        "description": "With json_schema, also name, schema, description and strict.",
    },
    "reasoning.effort": {"description": "For the chat template."},
}

KNOWN = known(
    input={
        "anyOf": [
            TEXT,
            array(
                {
                    "type": "object",
                    "properties": {
                        "type": {"enum": ["message", None]},
                        "role": choice("user", "assistant", "system", "developer"),
                        "content": TEXT,
                    },
                    "required": ["content", "role"],
                },
                minItems=1,
                maxItems=MAX_ITEMS,
            ),
        ],
        "description": f"A text, or items: {', '.join(READERS)}. Contents may also be lists of parts.",
    },
    instructions={"description": "The system's message. Not taken over from earlier responses."},
    max_output_tokens={"description": "Most tokens of the answer."},
    max_tool_calls={"description": "Without effect: it only counts tools that the server runs."},
    tools={
        "items": {
            "type": "object",
            "properties": {
                "type": constant("function"),
                "name": FUNCTION_NAME,
                "description": nullable(TEXT),
                "parameters": nullable(OBJECT),
                "strict": nullable(FLAG),
            },
            "required": ["name", "type"],
        },
        "description": "Functions.",
    },
    tool_choice={
        "enum": ["auto", "none"],
        "description": "With tools, also required, one function, or allowed_tools.",
    },
    parallel_tool_calls={"description": "Whether several functions may be called at once."},
    previous_response_id={"description": "The stored response that this one continues."},
    store={"description": "Whether the answer is kept (in memory) for later requests."},
    truncation={
        "enum": ["auto", "disabled"],
        "description": "Whether the oldest items are left out if the input is too long.",
    },
    include={"items": {"enum": list(INCLUDABLE)}, "description": "What is to be in the answer."},
    top_logprobs={"maximum": MAX_TOP_LOGPROBS, "description": "Alternatives at each position."},
    metadata={
        "maxProperties": MAX_METADATA,
        "propertyNames": {"maxLength": MAX_METADATA_KEY},
        "additionalProperties": {**TEXT, "maxLength": MAX_METADATA_VALUE},
        "description": "Repeated in the answer.",
    },
    prompt_cache_key={"description": "Repeated in the answer."},
    safety_identifier={"description": "Repeated in the answer."},
    user={"description": "Repeated in the answer."},
    chat_template_kwargs={"description": "Further arguments of the template."},
    **NESTED,
)

ID = {"id": "of a stored response"}

OPERATIONS = (
    Operation(
        "/v1/responses",
        "post",
        "The next turn of a conversation",
        {200: Answer("The answer.", ref("Response"), EVENT)},
        body=Body(lambda fields: read_response(fields, SamplingParams()), {"input": "a"}, KNOWN),
        errors=(400, 404, 408, 413, 429, 500, 503, 504),
    ),
    Operation(
        "/v1/responses/{id}",
        "get",
        "A stored response",
        {200: Answer("The response.", ref("Response"))},
        errors=(400, 404),
        parameters=ID,
    ),
    Operation(
        "/v1/responses/{id}",
        "delete",
        "Forget a stored response",
        {200: Answer("It is forgotten.", DELETED)},
        errors=(404,),
        parameters=ID,
    ),
    Operation(
        "/v1/responses/{id}/input_items",
        "get",
        "What a stored response was made from",
        {200: Answer("A page of items.", ITEMS)},
        errors=(400, 404),
        parameters=ID,
    ),
    Operation(
        "/v1/responses/{id}/cancel",
        "post",
        "Refused: no response runs in the background",
        {},
        errors=(400, 404),
        parameters=ID,
    ),
)

COMPONENTS = {"Response": RESPONSE}
