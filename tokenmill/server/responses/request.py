"""Reads the body of a request for a response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.fields import Fields
from tokenmill.server.protocol import ChatRequest
from tokenmill.server.responses.items import Item, chat_messages, read_input
from tokenmill.server.responses.tools import (
    chat_tools,
    read_format,
    read_tool_choice,
    read_tools,
)
from tokenmill.server.translation import read_extras, read_translated, template_options

UNSUPPORTED = ("background", "conversation", "prompt", "moderation")
"""Fields that would change the answer but can't be obeyed."""

INCLUDABLE = (
    "message.output_text.logprobs",
    "reasoning.encrypted_content",  # What was thought stands in the item in plain words.
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""What may be asked for in addition. Most belongs to tools that no answer here has."""

MAX_TOP_LOGPROBS = 20
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512

NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "messages": "input",
}
"""Fields of chat completions that are called otherwise here."""


@dataclass(frozen=True)
class ResponseRequest:
    """Body of /v1/responses.

    chat: the same request for the engine, without what ``previous`` refers to. items: the input.
    previous: id of the response that this one continues. shown: fields that the answer repeats.
    """

    chat: ChatRequest
    items: list[Item]
    instructions: str | None
    previous: str | None
    store: bool
    truncates: bool
    shown: dict[str, Any]

    def after(self, history: Sequence[Item]) -> ChatRequest:
        """The chat request with the items of earlier turns before its own."""
        messages = chat_messages(self.instructions, [*history, *self.items])
        return replace(self.chat, messages=messages)


def read_response(fields: Fields, defaults: SamplingParams) -> ResponseRequest:
    """Raises ApiError (400) naming the field that is wrong."""
    fields.refuse(UNSUPPORTED)
    fields.refuse(("context_management",), (None, []))
    items = read_input(fields)
    instructions = fields.text("instructions")
    tools = read_tools(fields)
    tool_choice, allowed = read_tool_choice(fields, tools)
    text = fields.section("text")
    text_format, response_format = read_format(text)
    reasoning = fields.section("reasoning")
    effort = reasoning.text("effort")
    top_logprobs = fields.integer("top_logprobs", minimum=0)
    if (top_logprobs or 0) > MAX_TOP_LOGPROBS:
        raise fields.wrong("top_logprobs", f"must be at most {MAX_TOP_LOGPROBS}")
    logprobs = _include(fields, "message.output_text.logprobs") or bool(top_logprobs)
    parallel = fields.flag("parallel_tool_calls", True)
    max_tokens = fields.integer("max_output_tokens", minimum=1)
    truncation = fields.text("truncation") or "disabled"
    if truncation not in ("auto", "disabled"):
        raise fields.wrong("truncation", "must be auto or disabled")
    extras = read_extras(fields)
    body = {
        **extras,
        "model": fields.text("model"),
        "messages": chat_messages(instructions, items),
        "stream": fields.flag("stream"),
        "max_completion_tokens": max_tokens,
        "temperature": fields.number("temperature"),
        "top_p": fields.number("top_p"),
        "top_k": fields.integer("top_k"),
        "logprobs": logprobs,
        "top_logprobs": top_logprobs,
        "tools": chat_tools(allowed) or None,
        "tool_choice": tool_choice if tools else None,
        "parallel_tool_calls": parallel if tools else None,
        "response_format": response_format,
        "chat_template_kwargs": template_options(extras.get("chat_template_kwargs"), effort=effort),
    }
    chat = read_translated(body, defaults, NAMES)
    sampling = chat.common.sampling
    return ResponseRequest(
        chat=chat,
        items=items,
        instructions=instructions,
        previous=fields.text("previous_response_id"),
        store=fields.flag("store", True),
        truncates=truncation == "auto",
        shown={
            "background": False,
            "instructions": instructions,
            "max_output_tokens": max_tokens,
            "max_tool_calls": fields.integer("max_tool_calls", minimum=1),
            "metadata": _metadata(fields),
            "parallel_tool_calls": parallel,
            "previous_response_id": fields.text("previous_response_id"),
            "prompt_cache_key": fields.text("prompt_cache_key"),
            "reasoning": {"effort": effort, "summary": None},
            "safety_identifier": fields.text("safety_identifier"),
            "service_tier": "default",
            "store": fields.flag("store", True),
            "temperature": sampling.temperature,
            "text": {"format": text_format},
            "tool_choice": fields.any("tool_choice") or "auto",
            "tools": tools,
            "top_logprobs": top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": truncation,
            "user": fields.text("user"),
        },
    )


def _include(fields: Fields, name: str) -> bool:
    asked = fields.array("include") or []
    for value in asked:
        if value not in INCLUDABLE:
            raise fields.wrong("include", f"can't have {value!r}; it may have {', '.join(INCLUDABLE)}")
    return name in asked


def _metadata(fields: Fields) -> dict[str, str]:
    found = fields.object("metadata") or {}
    good = len(found) <= MAX_METADATA and all(
        isinstance(value, str) and len(key) <= MAX_METADATA_KEY and len(value) <= MAX_METADATA_VALUE
        for key, value in found.items()
    )
    if not good:
        raise fields.wrong(
            "metadata",
            f"must be at most {MAX_METADATA} texts of at most {MAX_METADATA_VALUE} characters, under "
            f"names of at most {MAX_METADATA_KEY}",
        )
    return found
