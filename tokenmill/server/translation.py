"""Requests of other protocols, put into the words of chat completions, so that one reader reads all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.errors import ApiError
from tokenmill.server.fields import Fields
from tokenmill.server.protocol import ChatRequest, read_chat

EXTRA_TEXTS = ("cache_salt",)
EXTRA_INTEGERS = ("seed", "priority", "min_tokens")
EXTRA_NUMBERS = ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
EXTRA_FLAGS = ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output")
EXTRA_OBJECTS = ("chat_template_kwargs", "logit_bias")


def read_extras(fields: Fields) -> dict[str, Any]:
    """Fields of this server's chat completions that the other protocols don't have, as given."""
    values: dict[str, Any] = {name: fields.text(name) for name in EXTRA_TEXTS}
    values |= {name: fields.integer(name) for name in EXTRA_INTEGERS}
    values |= {name: fields.number(name) for name in EXTRA_NUMBERS}
    values |= {name: fields.flag(name) for name in EXTRA_FLAGS if fields.has(name)}
    values |= {name: fields.object(name) for name in EXTRA_OBJECTS}
    return {name: value for name, value in values.items() if value is not None}


def read_translated(
    body: Mapping[str, Any], defaults: SamplingParams, names: Mapping[str, str]
) -> ChatRequest:
    """The chat request that ``body`` says.

    names: what the client calls the fields that have other names here (here: there); errors tell the
    client's. Raises ApiError (400).
    """
    try:
        return read_chat(Fields(dict(body)), defaults)
    except ApiError as error:
        raise _renamed(error, names) from error


def template_options(
    given: Mapping[str, Any] | None, *, effort: str | None, thinks: bool | None = None
) -> dict[str, Any]:
    """Arguments of the chat template: those given, and how much the model is to think.

    effort: as asked for; "none" is not to think at all. thinks: whether to think, if the client said.
    Templates know ``reasoning_effort`` (gpt-oss) or ``enable_thinking`` (Qwen3, GLM, ...), and ignore
    the other.
    """
    if effort == "none":
        effort, thinks = None, False
    meant = {"reasoning_effort": effort, "enable_thinking": thinks}
    return {**{name: value for name, value in meant.items() if value is not None}, **(given or {})}


def _renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    message, param = str(error), error.param
    # The longest name first: "a.b" may be called otherwise than "a".
    for here, there in sorted(names.items(), key=lambda entry: -len(entry[0])):
        if param is not None and (param == here or param.startswith((f"{here}.", f"{here}["))):
            param = there + param[len(here) :]
            message = message.replace(here, there)
            break
    return ApiError(message, status=error.status, kind=error.kind, param=param, code=error.code)
