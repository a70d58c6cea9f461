"""Reads the body of a request for a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.fields import Fields
from tokenmill.server.messages.conversation import continues, read_conversation
from tokenmill.server.protocol import ChatRequest
from tokenmill.server.translation import read_extras, read_translated, template_options

UNSUPPORTED = ("container", "mcp_servers")
"""Fields that would change the answer but can't be obeyed."""

NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
}
"""Fields of chat completions that are called otherwise here."""


@dataclass(frozen=True)
class MessageRequest:
    """Body of /v1/messages. chat: the same request for the engine. max_tokens: as asked for."""

    chat: ChatRequest
    max_tokens: int


def read_message(fields: Fields, defaults: SamplingParams) -> MessageRequest:
    """Raises ApiError (400) naming the field that is wrong."""
    max_tokens = fields.integer("max_tokens", minimum=1)
    if max_tokens is None:
        raise fields.wrong("max_tokens", "is missing")
    body = {
        **read_extras(fields),
        **_conversation(fields),
        "stream": fields.flag("stream"),
        "max_completion_tokens": max_tokens,
        "stop": fields.array("stop_sequences"),
        "temperature": fields.number("temperature"),
        "top_p": fields.number("top_p"),
        "top_k": fields.integer("top_k"),
    }
    return MessageRequest(read_translated(body, defaults, NAMES), max_tokens)


def read_count(fields: Fields, defaults: SamplingParams) -> ChatRequest:
    """Body of /v1/messages/count_tokens. Raises ApiError (400) naming the field that is wrong."""
    extras = read_extras(fields)
    return read_translated({**extras, **_conversation(fields)}, defaults, NAMES)


def _conversation(fields: Fields) -> dict[str, Any]:
    """What the prompt is made from, in the words of chat completions."""
    fields.refuse(UNSUPPORTED)
    messages = read_conversation(fields)
    prefilled = continues(messages)
    tools = _tools(fields)
    choice, parallel = _tool_choice(fields, [tool["function"]["name"] for tool in tools])
    output = fields.section("output_config")
    given = fields.object("chat_template_kwargs")
    return {
        "model": fields.text("model"),
        "messages": messages,
        "tools": tools or None,
        "tool_choice": choice if tools else None,
        "parallel_tool_calls": parallel if tools else None,
        "response_format": _response_format(output),
        "chat_template_kwargs": template_options(
            given, effort=output.text("effort"), thinks=_thinks(fields)
        ),
        "continue_final_message": prefilled,
        "add_generation_prompt": not prefilled,
    }


def _tools(fields: Fields) -> list[dict[str, Any]]:
    tools = []
    for tool in fields.objects("tools"):
        kind = tool.text("type") or "custom"
        if kind != "custom":
            raise tool.wrong(
                "type",
                f"{kind!r} is not supported: this server runs no tools itself, and knows none by name; "
                "describe the tool by an input_schema",
            )
        name, schema = tool.text("name"), tool.object("input_schema")
        if not name:
            raise tool.wrong("name", "is missing")
        if schema is None:
            raise tool.wrong("input_schema", "is missing")
        function: dict[str, Any] = {"name": name, "parameters": schema}
        if tool.has("description"):
            function["description"] = tool.text("description")
        if tool.has("strict"):
            function["strict"] = tool.flag("strict")
        tools.append({"type": "function", "function": function})
    return tools


def _tool_choice(fields: Fields, names: list[str]) -> tuple[Any, bool]:
    """The choice for chat completions, and whether several tools may be called at once."""
    choice = fields.section("tool_choice")
    if not fields.has("tool_choice"):
        return None, True
    kind = choice.text("type") or "auto"
    parallel = not choice.flag("disable_parallel_tool_use")
    if kind in ("auto", "none"):
        return kind, parallel
    if kind not in ("any", "tool"):
        raise choice.wrong("type", f"must be auto, any, tool or none, not {kind!r}")
    if not names:
        raise choice.wrong("type", f"is {kind}, but there are no tools; add some")
    if kind == "any":
        return "required", parallel
    name = choice.text("name")
    if name not in names:
        raise choice.wrong("name", f"must be the name of one of the tools, not {name!r}")
    return {"type": "function", "function": {"name": name}}, parallel


def _response_format(output: Fields) -> dict[str, Any] | None:
    form = output.section("format")
    kind, schema = form.text("type"), form.object("schema")
    if kind is None and schema is None:
        return None
    if kind != "json_schema":
        raise form.wrong("type", "must be json_schema")
    if schema is None:
        raise form.wrong("schema", "is missing")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}


def _thinks(fields: Fields) -> bool | None:
    """Whether the model is to think first; None leaves that to its chat template."""
    thinking = fields.section("thinking")
    kind = thinking.text("type")
    if kind is None:
        return None
    if kind not in ("enabled", "adaptive", "disabled"):
        raise thinking.wrong("type", f"must be enabled, adaptive or disabled, not {kind!r}")
    return kind != "disabled"
