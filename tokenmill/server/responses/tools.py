"""Tools and forms of answers, which the Responses API writes flatter than chat completions do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.server.fields import Fields

Tool = dict[str, Any]


def read_tools(fields: Fields) -> list[Tool]:
    """Functions as given. Raises ApiError (400) for tools that the client doesn't run itself."""
    tools = []
    for tool in fields.objects("tools"):
        if tool.text("type") != "function":
            raise tool.wrong(
                "type",
                f"{tool.any('type')!r} is not supported: this server runs no tools itself; "
                "offer a function",
            )
        if not tool.text("name"):
            raise tool.wrong("name", "is missing")
        tools.append(
            {
                "type": "function",
                "name": tool.text("name"),
                "description": tool.text("description"),
                "parameters": tool.object("parameters"),
                "strict": tool.flag("strict") if tool.has("strict") else None,
            }
        )
    return tools


def chat_tools(tools: Sequence[Tool]) -> list[Tool]:
    """The same for chat completions."""
    names = ("name", "description", "parameters", "strict")
    return [
        {
            "type": "function",
            "function": {name: tool[name] for name in names if tool[name] is not None},
        }
        for tool in tools
    ]


def read_tool_choice(fields: Fields, tools: Sequence[Tool]) -> tuple[Any, list[Tool]]:
    """The choice for chat completions, and the tools that may be called.

    Raises ApiError (400) if it names a tool that is not there.
    """
    value = fields.any("tool_choice")
    if value is None or value in ("auto", "none", "required"):
        if value == "required" and not tools:
            raise fields.wrong("tool_choice", "is required, but there are no tools; add some")
        return value, list(tools)
    if not isinstance(value, dict):
        raise fields.wrong("tool_choice", "must be auto, none, required or an object")
    choice = fields.section("tool_choice")
    if choice.any("type") == "function":
        name = _known(choice, tools)
        return {"type": "function", "function": {"name": name}}, list(tools)
    if choice.any("type") == "allowed_tools":
        if choice.any("mode") not in ("auto", "required"):
            raise choice.wrong("mode", "must be auto or required")
        allowed = {_known(tool, tools) for tool in choice.objects("tools")}
        if not allowed:
            raise choice.wrong("tools", "must name at least one tool")
        return choice.any("mode"), [tool for tool in tools if tool["name"] in allowed]
    raise choice.wrong("type", f"must be function or allowed_tools, not {choice.any('type')!r}")


def _known(choice: Fields, tools: Sequence[Tool]) -> str:
    name = choice.text("name")
    if name is None or all(tool["name"] != name for tool in tools):
        raise choice.wrong("name", f"must be the name of one of the tools, not {name!r}")
    return name


def read_format(text: Fields) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """``text.format`` as answers show it, and ``response_format`` of chat completions; None: free text.

    Raises ApiError (400) naming what is wrong.
    """
    form = text.section("format")
    kind = form.text("type") or "text"
    if kind == "text":
        return {"type": "text"}, None
    if kind == "json_object":
        return {"type": kind}, {"type": kind}
    if kind != "json_schema":
        raise form.wrong("type", f"must be text, json_object or json_schema, not {kind!r}")
    schema = form.object("schema")
    if schema is None:
        raise form.wrong("schema", "is missing")
    name = form.text("name")
    if not name:
        raise form.wrong("name", "is missing")
    given = {
        "name": name,
        "description": form.text("description"),
        "schema": schema,
        "strict": form.flag("strict"),
    }
    return {"type": kind, **given}, {
        "type": kind,
        "json_schema": {key: value for key, value in given.items() if value is not None},
    }
