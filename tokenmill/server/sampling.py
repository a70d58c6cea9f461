"""Sampling parameters of a request body: OpenAI's, and those that vLLM's server adds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tokenmill.engine.sampling_params import RequestOutputKind, SamplingParams
from tokenmill.engine.structured_outputs import StructuredOutputs
from tokenmill.errors import RequestError
from tokenmill.server.errors import ApiError
from tokenmill.server.fields import Fields

NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
INTEGERS = ("n", "seed", "top_k", "min_tokens", "prompt_logprobs")
FLAGS = ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output")
TOKEN_LISTS = ("stop_token_ids", "allowed_token_ids")

UNSUPPORTED = (
    "use_beam_search",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "logits_processors",
    "prompt_embeds",
)
"""Fields that would change the answer. Others that are unknown are ignored."""

MAX_CHOICES = 128
"""Most answers that one request may ask for, as in the OpenAI API."""


def read_sampling(
    fields: Fields,
    defaults: SamplingParams,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    stream: bool,
    **more: Any,
) -> SamplingParams:
    """Parameters of a request on top of what the model's authors recommend.

    more: further fields of SamplingParams. Raises ApiError (400) naming the field that is wrong.
    """
    fields.refuse(UNSUPPORTED, (None, False, 1, [], {}, ""))
    values: dict[str, Any] = {name: fields.number(name) for name in NUMBERS}
    values |= {name: fields.integer(name) for name in INTEGERS}
    values |= {name: fields.flag(name) for name in FLAGS if fields.has(name)}
    values |= {name: fields.integers(name) for name in TOKEN_LISTS}
    values["structured_outputs"] = _form(fields)
    values["bad_words"] = fields.array("bad_words")
    values["stop"] = _stop(fields)
    values["logit_bias"] = _logit_bias(fields)
    if (values["n"] or 1) > MAX_CHOICES:
        raise fields.wrong("n", f"must be at most {MAX_CHOICES}")
    if fields.integer("best_of") not in (None, values["n"] or 1):
        raise fields.wrong("best_of", "must equal n; ask for more answers, and choose among them")
    kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    given = {name: value for name, value in values.items() if value is not None}
    given |= {"max_tokens": max_tokens, "logprobs": logprobs, "output_kind": kind}
    try:
        return replace(defaults, **{**given, **more})
    except RequestError as error:
        named = str(error).split(" ", 1)[0]
        raise ApiError(str(error), param=named if named in given else None) from error


def _form(fields: Fields) -> StructuredOutputs | None:
    """The form of the answer: OpenAI's ``response_format``, or vLLM's ``structured_outputs``."""
    given, asked = fields.object("structured_outputs"), fields.section("response_format")
    kind = asked.any("type")
    if kind not in (None, "text", "json_object", "json_schema"):
        raise fields.wrong("response_format", "must be of type text, json_object or json_schema")
    if given is not None and kind not in (None, "text"):
        raise fields.wrong("structured_outputs", "can't be given beside response_format")
    try:
        if given is not None:
            return StructuredOutputs.read(given)
        if kind == "json_object":
            return StructuredOutputs(json_object=True, called="response_format")
        if kind == "json_schema":
            schema = asked.section("json_schema").object("schema")
            if schema is None:
                raise fields.wrong("response_format", "needs json_schema.schema, an object")
            return StructuredOutputs(json=schema, called="response_format")
    except RequestError as error:
        raise ApiError(
            str(error), param="structured_outputs" if given else "response_format"
        ) from error
    return None


def _stop(fields: Fields) -> list[str] | None:
    value = fields.any("stop")
    texts = [value] if isinstance(value, str) else value
    if texts is None:
        return None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise fields.wrong("stop", "must be a string or a list of strings")
    # Clients send "" for "none".
    return [text for text in texts if text]


def _logit_bias(fields: Fields) -> dict[int, float] | None:
    found = fields.object("logit_bias")
    if found is None:
        return None
    bias: dict[int, float] = {}
    for token, value in found.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (token.isascii() and token.isdigit() and len(token) < 12 and number):
            raise fields.wrong("logit_bias", "must map token ids to numbers")
        bias[int(token)] = float(value)
    return bias
