"""Conversations of the Messages API, put into chat messages.

Facts: https://docs.anthropic.com/en/api/messages, and the types of Anthropic's client.
"""

from __future__ import annotations

import json
from typing import Any

from tokenmill.server.fields import Fields

Message = dict[str, Any]

MAX_MESSAGES = 100_000
"""Most messages of one request, as in the Messages API."""

FAILED = "Error: "
"""Begins the result of a tool that failed; chat templates have no other way to say so."""


def read_conversation(fields: Fields) -> list[Message]:
    """The system prompt and the messages. Raises ApiError (400) naming what is wrong."""
    found: list[Message] = []
    if fields.has("system"):
        texts = [_text_block(block) for block in _blocks(fields, "system")]
        found.append({"role": "system", "content": _content(texts)})
    if not fields.has("messages"):
        raise fields.wrong("messages", "is missing")
    messages = fields.objects("messages")
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise fields.wrong("messages", f"must be a list of 1 to {MAX_MESSAGES} messages")
    names: dict[str, str] = {}
    for message in messages:
        role = message.text("role")
        if role == "user":
            _add_user(found, message, names)
        elif role == "assistant":
            _add_assistant(found, message, names)
        elif role == "system":
            texts = [_text_block(block) for block in _blocks(message, "content")]
            found.append({"role": "system", "content": _content(texts)})
        else:
            raise message.wrong("role", f"must be user or assistant, not {role!r}")
    if not found:
        raise fields.wrong("messages", "have no content; give them some text")
    return found


def continues(messages: list[Message]) -> bool:
    """Whether the last message is the beginning of the answer.

    A message that only calls tools has no text to go on with, so it is not.
    """
    last = messages[-1]
    return last["role"] == "assistant" and "tool_calls" not in last and bool(last["content"])


def _add_user(found: list[Message], message: Fields, names: dict[str, str]) -> None:
    """Results of tools are messages of their own; what the user says follows them."""
    texts: list[str] = []
    for block in _blocks(message, "content"):
        if block.text("type") == "tool_result":
            if texts:
                _add_texts(found, texts)
                texts = []
            found.append(_tool_result(block, names))
        else:
            texts.append(_text_block(block))
    if texts:
        _add_texts(found, texts)


def _add_texts(found: list[Message], texts: list[str]) -> None:
    """Messages of the user that follow each other are one turn, as the Messages API defines."""
    if found and found[-1]["role"] == "user":
        earlier = found[-1]["content"]
        before = [earlier] if isinstance(earlier, str) else [part["text"] for part in earlier]
        found[-1] = {"role": "user", "content": _content([*before, *texts])}
    else:
        found.append({"role": "user", "content": _content(texts)})


def _add_assistant(found: list[Message], message: Fields, names: dict[str, str]) -> None:
    turn: Message = {"role": "assistant", "content": ""}
    if found and found[-1]["role"] == "assistant":
        turn = found[-1]
    else:
        found.append(turn)
    for block in _blocks(message, "content"):
        kind = block.text("type")
        if kind == "thinking":
            thought = turn.get("reasoning_content", "") + _required(block, "thinking")
            turn["reasoning_content"] = thought
        elif kind == "tool_use":
            call, name = _required(block, "id"), _required(block, "name")
            names[call] = name
            arguments = json.dumps(block.object("input") or {}, ensure_ascii=False)
            function = {"name": name, "arguments": arguments}
            turn.setdefault("tool_calls", []).append(
                {"id": call, "type": "function", "function": function}
            )
        elif kind != "redacted_thinking":  # which nobody here can read
            turn["content"] += _text_block(block)


def _tool_result(block: Fields, names: dict[str, str]) -> Message:
    call = _required(block, "tool_use_id")
    texts = [_text_block(part) for part in _blocks(block, "content")] if block.has("content") else []
    if block.flag("is_error"):
        texts = [FAILED + "\n".join(texts)]
    answer = {"role": "tool", "tool_call_id": call, "content": _content(texts)}
    return {**answer, "name": names[call]} if call in names else answer


def _blocks(fields: Fields, name: str) -> list[Fields]:
    """Content: a text is a block of its own."""
    value = fields.any(name)
    if isinstance(value, str):
        return [Fields({"type": "text", "text": value}, name)]
    if not isinstance(value, list):
        problem = "is missing" if value is None else "must be a text or a list of blocks"
        raise fields.wrong(name, problem)
    return fields.objects(name)


def _text_block(block: Fields) -> str:
    kind = block.text("type")
    if kind != "text":
        raise block.wrong("type", f"{kind!r} is not supported here: this server reads text only")
    return _required(block, "text")


def _required(block: Fields, name: str) -> str:
    value = block.text(name)
    if value is None:
        raise block.wrong(name, "is missing")
    return value


def _content(texts: list[str]) -> str | list[Message]:
    """Several texts stay parts: the template says how they are joined."""
    if len(texts) <= 1:
        return "".join(texts)
    return [{"type": "text", "text": text} for text in texts]
