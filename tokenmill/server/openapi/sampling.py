"""What can be said of the fields that all generating endpoints read."""

from __future__ import annotations

import math

from tokenmill.engine.sampling_params import INTEGER_LIMITS, NUMBER_LIMITS, POSITIVE_LIMITS
from tokenmill.engine.structured_outputs import (
    MAX_CHOICES as MAX_LISTED_CHOICES,
)
from tokenmill.engine.structured_outputs import (
    MAX_REGEX_CHARS,
    MAX_SCHEMA_CHARS,
)
from tokenmill.server.openapi.schemas import NUMBER, OBJECT, TEXT, Schema, array, nullable
from tokenmill.server.sampling import MAX_CHOICES

FORMS: dict[str, Schema] = {
    "json": {"type": "object", "description": "A JSON Schema."},
    "regex": {**TEXT, "minLength": 1, "maxLength": MAX_REGEX_CHARS},
    "choice": {
        **array({**TEXT, "minLength": 1}),
        "minItems": 1,
        "maxItems": MAX_LISTED_CHOICES,
    },
    "grammar": {
        **TEXT,
        "minLength": 1,
        "maxLength": MAX_SCHEMA_CHARS,
        "description": "A context-free grammar in the notation of Lark or of GBNF.",
    },
    "json_object": {"const": True},
}
"""One of these fields is in structured_outputs."""

DESCRIPTIONS = {
    "model": "A served name; the first one if left out.",
    "n": "Answers to each prompt.",
    "temperature": "0 always takes the likeliest token.",
    "top_p": "Least probability mass of the likeliest tokens that are kept.",
    "top_k": "Tokens that are kept; 0 or -1: all.",
    "min_p": "Least probability that is kept, as a share of the likeliest token's.",
    "seed": "The same seed gives the same tokens.",
    "presence_penalty": "Taken off the logits of tokens that the answer has.",
    "frequency_penalty": "Taken off the logits of tokens for each time that the answer has them.",
    "repetition_penalty": "Above 1 discourages tokens of prompt and answer.",
    "min_tokens": "Until then nothing ends the answer.",
    "ignore_eos": "Whether to go on after the end of the sequence.",
    "prompt_logprobs": "Alternatives at each position of the prompt.",
    "include_stop_str_in_output": "Whether the answer keeps the text that stopped it.",
    "skip_special_tokens": "Whether special tokens are left out of the text.",
    "priority": "The smallest goes first, if the server is set up so.",
    "cache_salt": "Only requests with the same one share cached beginnings.",
    "return_token_ids": "Whether token ids stand beside the texts.",
    "stream": "Whether the answer is a stream of events.",
    "stream_options.include_usage": "Whether the stream ends with the usage.",
    "stream_options.continuous_usage_stats": "Whether every piece has the usage so far.",
    "best_of": "Must equal n.",
}


def _integer(name: str) -> Schema:
    least, most = INTEGER_LIMITS[name]
    return {"minimum": least} if most is None else {"minimum": least, "maximum": most}


def _number(least: float, most: float) -> Schema:
    return {"minimum": least} if most == math.inf else {"minimum": least, "maximum": most}


def _above_zero(most: float) -> Schema:
    return {"exclusiveMinimum": 0} if most == math.inf else {"exclusiveMinimum": 0, "maximum": most}


def _only_form(name: str, schema: Schema) -> Schema:
    properties = {name: schema, "after": nullable({**TEXT, "minLength": 1})}
    return {
        "type": "object",
        "properties": properties,
        "required": [name],
        "additionalProperties": False,
    }


def known(**more: Schema) -> dict[str, Schema]:
    """Limits and descriptions by field. more: what is particular to the endpoint."""
    found: dict[str, Schema] = {name: _integer(name) for name in INTEGER_LIMITS}
    found |= {name: _number(*limits) for name, limits in NUMBER_LIMITS.items()}
    found |= {name: _above_zero(most) for name, most in POSITIVE_LIMITS.items()}
    found["n"] = {"minimum": INTEGER_LIMITS["n"][0], "maximum": MAX_CHOICES}
    found["stop"] = {
        "anyOf": [TEXT, array(TEXT)],
        "description": "Texts that end the answer.",
    }
    found["stop_token_ids"] = {"description": "Tokens that end the answer."}
    found["allowed_token_ids"] = {
        "minItems": 1,
        "description": "The only tokens that may follow.",
    }
    found["bad_words"] = {
        "items": {**TEXT, "minLength": 1},
        "description": "Texts that are never completed.",
    }
    found["logit_bias"] = {
        "patternProperties": {"^[0-9]{1,11}$": NUMBER},
        "additionalProperties": False,
        "description": "Added to the logits of tokens, by token id.",
    }
    found["response_format.type"] = {"enum": ["text", "json_object", "json_schema"]}
    found["response_format"] = {
        "anyOf": [
            {"properties": {"type": {"enum": ["text", "json_object", None]}}},
            {
                "properties": {
                    "json_schema": {
                        "type": "object",
                        "properties": {"schema": OBJECT},
                        "required": ["schema"],
                    }
                },
                "required": ["type", "json_schema"],
            },
        ],
        "description": "The form of the answer: text, a JSON object, or what a JSON Schema allows.",
    }
    found["structured_outputs"] = {
        "oneOf": [_only_form(name, schema) for name, schema in FORMS.items()],
        "description": "The form of the answer, as vLLM names it; not beside response_format.",
    }
    for name, text in DESCRIPTIONS.items():
        found[name] = {**found.get(name, {}), "description": text}
    return {**found, **more}
