"""/v1/completions."""

from __future__ import annotations

from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.completions import read_completion
from tokenmill.server.openapi.answers import (
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
    NUMBER,
    TEXT,
    array,
    nullable,
    record,
    ref,
    table,
)
from tokenmill.server.protocol import MAX_PROMPTS

LOGPROBS = record(
    {
        "text_offset": array(COUNT),
        "token_logprobs": array(nullable(NUMBER)),
        "tokens": array(TEXT),
        "top_logprobs": array(nullable(table(NUMBER))),
    }
)

CHOICE = {
    "index": COUNT,
    "text": TEXT,
    "logprobs": nullable(LOGPROBS),
    "finish_reason": finish_reason(),
    "stop_reason": STOP_REASON,
}

IDS = {"token_ids": TOKEN_IDS, "prompt_token_ids": TOKEN_IDS}

WHOLE = record(
    {
        **head("text_completion"),
        "choices": array(record(CHOICE, {**IDS, "prompt_logprobs": PROMPT_LOGPROBS})),
        "usage": ref("Usage"),
    }
)

CHUNK = record(
    {**head("text_completion"), "choices": array(record(CHOICE, IDS))},
    {"usage": nullable(ref("Usage"))},
)

_TEXT = {**TEXT, "minLength": 1}
_IDS = array(COUNT, minItems=1)

KNOWN = known(
    prompt={
        "anyOf": [
            _TEXT,
            _IDS,
            array({"anyOf": [_TEXT, _IDS]}, minItems=1, maxItems=MAX_PROMPTS),
        ],
        "description": "A text, token ids, or a list of either.",
    },
    max_tokens={"description": "Most tokens of an answer; 0, with echo, only scores the prompt."},
    echo={"description": "Whether the answer's text begins with the prompt."},
    suffix={"description": "What follows the answer, for models that fill in."},
    add_special_tokens={"description": "Whether texts begin and end as the model wants it."},
    truncate_prompt_tokens={
        "anyOf": [{"const": -1}, {"minimum": 1}],
        "description": "Keep this many of the prompt's last tokens; -1: as many as fit.",
    },
)

OPERATIONS = (
    Operation(
        "/v1/completions",
        "post",
        "Continuations of prompts",
        {200: Answer("The continuations.", ref("Completion"), event(ref("CompletionChunk")))},
        body=Body(lambda fields: read_completion(fields, SamplingParams()), {"prompt": "a"}, KNOWN),
        errors=(400, 404, 408, 413, 429, 500, 503, 504),
    ),
)

COMPONENTS = {"Completion": WHOLE, "CompletionChunk": CHUNK}
