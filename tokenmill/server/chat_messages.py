"""Reads the messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenmill.server.errors import ApiError
from tokenmill.server.fields import Fields

Message = dict[str, Any]


def read_messages(fields: Fields) -> list[Message]:
    """The messages for the chat template, which says what else they may hold.

    Results of tools get the name of the tool that was called, which some templates ask for. Raises
    ApiError (400) naming what is wrong.
    """
    messages = fields.array("messages")
    if not messages:
        raise fields.wrong("messages", "must be a list with at least one message")
    if not all(isinstance(message, dict) for message in messages):
        raise fields.wrong("messages", "must be a list of objects with 'role' and 'content'")
    names: dict[str, str] = {}
    return [_read(message, f"messages[{at}]", names) for at, message in enumerate(messages)]


def _read(message: Message, where: str, names: dict[str, str]) -> Message:
    role = message.get("role")
    if role == "assistant":
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            raise _wrong(f"{where}.tool_calls", "must be a list")
        for at, call in enumerate(calls or ()):
            _note_call(call, f"{where}.tool_calls[{at}]", names)
        if calls == []:
            message = {key: value for key, value in message.items() if key != "tool_calls"}
        return _with_thoughts(message)
    if role == "tool":
        call_id = message.get("tool_call_id")
        if call_id is not None and not isinstance(call_id, str):
            raise _wrong(f"{where}.tool_call_id", "must be a string")
        if message.get("name") is None and call_id in names:
            return {**message, "name": names[call_id]}
    return message


def _note_call(call: Any, where: str, names: dict[str, str]) -> None:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise _wrong(where, "must be an object with a function")
    name, arguments, call_id = function.get("name"), function.get("arguments"), call.get("id")
    if not isinstance(name, str) or not name:
        raise _wrong(f"{where}.function.name", "must be the name of a tool")
    if not isinstance(arguments, str | Mapping | None):
        raise _wrong(f"{where}.function.arguments", "must be JSON in a string, or an object")
    if isinstance(call_id, str):
        names[call_id] = name


def _with_thoughts(message: Message) -> Message:
    """Templates ask for ``reasoning_content``; clients may send back ``reasoning`` only."""
    thoughts = message.get("reasoning")
    if not isinstance(thoughts, str) or message.get("reasoning_content") is not None:
        return message
    return {**message, "reasoning_content": thoughts}


def _wrong(where: str, problem: str) -> ApiError:
    return ApiError(f"{where} {problem}", param=where)
