"""Reads which tools a request offers, and whether they have to be called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tokenmill.server.fields import Fields
from tokenmill.server.tools.family import ANY_ARGUMENTS, Function

MAX_TOOLS = 1024
NAME = re.compile(r"[\w.:/-]{1,256}", re.ASCII)


@dataclass(frozen=True)
class ToolUse:
    """functions: those that may be called. must: the answer is a call. parallel: it may be several."""

    functions: tuple[Function, ...]
    must: bool
    parallel: bool


def read_tool_use(fields: Fields) -> ToolUse | None:
    """None if no tool may be called. Raises ApiError (400) naming the field that is wrong."""
    functions = [_function(tool) for tool in fields.objects("tools")]
    if len(functions) > MAX_TOOLS:
        raise fields.wrong("tools", f"must be at most {MAX_TOOLS}")
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise fields.wrong("tools", f"has two functions called {twice!r}; give each its own name")
    parallel = fields.flag("parallel_tool_calls", True)
    choice = fields.any("tool_choice")
    if choice in (None, "auto", "none"):
        used = functions if choice != "none" else []
        return ToolUse(tuple(used), must=False, parallel=parallel) if used else None
    if choice != "required" and not isinstance(choice, dict):
        raise fields.wrong("tool_choice", "must be auto, none, required or an object")
    if not functions:
        raise fields.wrong("tool_choice", "needs tools; offer at least one")
    if choice == "required":
        return ToolUse(tuple(functions), must=True, parallel=parallel)
    return _chosen(fields, fields.section("tool_choice"), functions, parallel)


def _chosen(fields: Fields, choice: Fields, functions: list[Function], parallel: bool) -> ToolUse:
    kind = choice.any("type")
    if kind == "function":
        name = choice.section("function").text("name")
        named = tuple(function for function in functions if function.name == name)
        if not named:
            raise fields.wrong("tool_choice", f"must name one of the tools, not {name!r}")
        return ToolUse(named, must=True, parallel=False)
    if kind != "allowed_tools":
        raise fields.wrong("tool_choice", f"must be of type function or allowed_tools, not {kind!r}")
    allowed = choice.section("allowed_tools")
    mode = allowed.any("mode")
    if mode not in ("auto", "required"):
        raise fields.wrong("tool_choice", "must have the mode auto or required in allowed_tools")
    names = {tool.section("function").text("name") for tool in allowed.objects("tools")}
    used = tuple(function for function in functions if function.name in names)
    if not used or len(used) < len(names):
        raise fields.wrong("tool_choice", "must name some of the tools in allowed_tools.tools")
    return ToolUse(used, must=mode == "required", parallel=parallel)


def _function(tool: Fields) -> Function:
    if tool.any("type") != "function":
        raise tool.wrong("type", "must be 'function': this server runs no tools itself")
    if not tool.has("function"):
        raise tool.wrong("function", "is missing")
    function = tool.section("function")
    name = function.text("name")
    if name is None or not NAME.fullmatch(name):
        raise function.wrong("name", "must be 1 to 256 letters, digits or any of _ - . : /")
    function.text("description")
    parameters: dict[str, Any] = function.object("parameters") or dict(ANY_ARGUMENTS)
    return Function(name, parameters, function.flag("strict"))
