"""Items of a conversation, as the Responses API has them, read and put into chat messages.

Facts: https://platform.openai.com/docs/api-reference/responses, and the types of OpenAI's client.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenmill.server.fields import Fields

Item = dict[str, Any]

MAX_ITEMS = 10_000
"""Most items of one input."""


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}_{uuid.uuid4().hex}"


def read_input(fields: Fields) -> list[Item]:
    """The items of ``input``, each with an id and in the form in which answers show it.

    Raises ApiError (400) naming what is wrong.
    """
    value = fields.any("input")
    if isinstance(value, str):
        return [_input_message("user", [_input_text(value)])]
    if not isinstance(value, list):
        problem = "is missing" if value is None else "must be a text or a list of items"
        raise fields.wrong("input", problem)
    if not value:
        raise fields.wrong("input", "must not be empty")
    if len(value) > MAX_ITEMS:
        raise fields.wrong("input", f"must be at most {MAX_ITEMS} items")
    return [_read_item(item) for item in fields.objects("input")]


def _read_item(item: Fields) -> Item:
    kind = item.text("type") or ("message" if item.has("role") else None)
    reader = READERS.get(kind or "")
    if reader is None:
        raise item.wrong(
            "type", f"must be one of {', '.join(READERS)}, not {kind!r}; leave other items out"
        )
    return reader(item)


def _read_message(item: Fields) -> Item:
    role = item.text("role")
    if role == "assistant":
        return {
            "type": "message",
            "id": item.text("id") or new_id("msg"),
            "role": role,
            "status": "completed",
            "content": [output_text(text) for text in _texts(item, "content")],
        }
    if role not in ("user", "system", "developer"):
        raise item.wrong("role", f"must be user, assistant, system or developer, not {role!r}")
    parts = [_input_text(text) for text in _texts(item, "content")]
    return _input_message(role, parts, item.text("id"))


def _read_call(item: Fields) -> Item:
    return {
        "type": "function_call",
        "id": item.text("id") or new_id("fc"),
        "call_id": _required(item, "call_id"),
        "name": _required(item, "name"),
        "arguments": _required(item, "arguments"),
        "status": "completed",
    }


def _read_call_output(item: Fields) -> Item:
    output = item.any("output")
    if not isinstance(output, str):
        output = [_input_text(text) for text in _texts(item, "output")]
    return {
        "type": "function_call_output",
        "id": item.text("id") or new_id("fco"),
        "call_id": _required(item, "call_id"),
        "output": output,
        "status": "completed",
    }


def _read_reasoning(item: Fields) -> Item:
    where = "content" if item.has("content") else "summary"
    kinds = ("reasoning_text", "summary_text")
    texts = _texts(item, where, kinds) if item.has(where) else []
    return reasoning(item.text("id") or new_id("rs"), "\n".join(texts), "completed")


READERS: Mapping[str, Callable[[Fields], Item]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_call_output,
    "reasoning": _read_reasoning,
}


def _required(item: Fields, name: str) -> str:
    value = item.text(name)
    if value is None:
        raise item.wrong(name, "is missing")
    return value


def _texts(
    item: Fields, name: str, kinds: Sequence[str] = ("input_text", "output_text", "text", "refusal")
) -> list[str]:
    """The texts of content: one text, or a list of parts."""
    value = item.any(name)
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise item.wrong(name, "is missing" if value is None else "must be a text or a list of parts")
    texts = []
    for part in item.objects(name):
        kind = part.text("type")
        if kind not in kinds:
            raise part.wrong(
                "type", f"{kind!r} is not supported: this server reads text only ({', '.join(kinds)})"
            )
        texts.append(_required(part, "refusal" if kind == "refusal" else "text"))
    return texts


def _input_text(text: str) -> Item:
    return {"type": "input_text", "text": text}


def _input_message(role: str, parts: list[Item], item_id: str | None = None) -> Item:
    return {
        "type": "message",
        "id": item_id or new_id("msg"),
        "role": role,
        "status": "completed",
        "content": parts,
    }


def output_text(text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> Item:
    """A part of an assistant's message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def reasoning(item_id: str, text: str, status: str) -> Item:
    """What a model thought."""
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"type": "reasoning", "id": item_id, "summary": [], "content": content, "status": status}


def chat_messages(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """The conversation for a chat template.

    What the assistant thought, said and called in one turn becomes one message. Instructions of the
    developer are a system message; those that begin a conversation are one, since many templates take
    no second.
    """
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    turn: dict[str, Any] = {}
    names: dict[str, str] = {}
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            turn = _begun(messages, turn, {"reasoning_content", "content", "tool_calls"})
            turn["reasoning_content"] = "".join(part["text"] for part in item["content"])
        elif kind == "function_call":
            turn = turn or _begun(messages, turn, set())
            names[item["call_id"]] = item["name"]
            turn.setdefault("tool_calls", []).append(_chat_call(item))
        elif kind == "message" and item["role"] == "assistant":
            turn = _begun(messages, turn, {"content", "tool_calls"})
            turn["content"] = "".join(part["text"] for part in item["content"])
        elif kind == "message":
            turn = {}
            role = "user" if item["role"] == "user" else "system"
            _add(messages, {"role": role, "content": _content(item["content"])})
        else:
            turn = {}
            call = item["call_id"]
            answer = {"role": "tool", "tool_call_id": call, "content": _content(item["output"])}
            messages.append({**answer, "name": names[call]} if call in names else answer)
    return messages


def _begun(messages: list[dict[str, Any]], turn: dict[str, Any], taken: set[str]) -> dict[str, Any]:
    """The assistant's message to go on with: a new one if the turn has any of ``taken`` already."""
    if not turn or taken & {name for name in turn if turn[name]}:
        turn = {"role": "assistant", "content": ""}
        messages.append(turn)
    return turn


def _add(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    first = len(messages) == 1 and messages[0]["role"] == "system"
    if first and message["role"] == "system":
        texts = (_joined(messages[0]["content"]), _joined(message["content"]))
        messages[0] = {"role": "system", "content": "\n\n".join(texts)}
    else:
        messages.append(message)


def _content(content: str | list[Item]) -> str | list[Item]:
    """Several parts stay parts: the template says how they are joined."""
    if isinstance(content, str):
        return content
    if len(content) == 1:
        return str(content[0]["text"])
    return [{"type": "text", "text": part["text"]} for part in content]


def _joined(content: str | list[Item]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _chat_call(item: Item) -> dict[str, Any]:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}
