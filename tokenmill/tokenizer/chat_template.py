"""Writes a conversation the way a model was trained to read it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokenmill.errors import RequestError

if TYPE_CHECKING:
    from tokenmill.tokenizer.template_sandbox import CompiledTemplate

CONTINUE_MARK = "CONTINUE_HERE "
"""Written behind the message that is to be continued, to find its end again. The space at its end tells
whether the template strips messages."""


class ChatTemplate:
    """A model's chat template, or several by name ("default", "tool_use", "rag", ...).

    special_tokens: what the template may write by name ("bos_token": "<s>").

    Compiled when first used. Safe to use from several threads. The language is Jinja's, in its sandbox,
    set up as in Hugging Face's ``apply_chat_template``.
    """

    def __init__(
        self, source: str | Mapping[str, str], special_tokens: Mapping[str, str] | None = None
    ) -> None:
        self.sources: Mapping[str, str] = {"default": source} if isinstance(source, str) else source
        self.special_tokens = dict(special_tokens or {})
        self._compiled: dict[str, CompiledTemplate] = {}
        self._lock = threading.Lock()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        *,
        template: str | None = None,
        **kwargs: Any,
    ) -> str:
        """The text of a conversation. Encode it without adding special tokens: it has them already.

        messages: dictionaries with "role" and "content". Content may be a list of parts; unless the
        template goes through the parts itself, their texts are joined by line ends. Values that are
        None count as absent, and arguments of tool calls written as JSON are read.
        add_generation_prompt: end with the beginning of an answer.
        continue_final_message: end within the last message, so that the answer continues it; then no
        answer is begun. template: which of several templates; None takes "tool_use" if there are tools
        and such a template, or else "default". kwargs: further variables of the template.

        Raises RequestError if the messages are malformed, or if the template refuses them, is broken,
        or runs too long.
        """
        compiled = self._compile(self._choose(template, has_tools=bool(tools)))
        try:
            conversation = [_plain_message(m, compiled.reads_parts) for m in _listed(messages)]
            variables = {
                **self.special_tokens,
                **_plain(kwargs, "a template variable"),
                "messages": conversation,
                "tools": _plain(tools, "a tool"),
                "documents": _plain(documents, "a document"),
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            }
        except RecursionError:
            raise RequestError("the messages are nested too deeply; send plainer ones") from None
        last_text = _mark_end(conversation) if continue_final_message else ""
        text = compiled.render(variables)
        return _up_to_mark(text, last_text) if continue_final_message else text

    def _choose(self, name: str | None, *, has_tools: bool) -> str:
        if name is None:
            name = "tool_use" if has_tools and "tool_use" in self.sources else "default"
        if name not in self.sources:
            names = ", ".join(sorted(self.sources))
            raise RequestError(f"the model has no chat template {name!r}; choose one of: {names}")
        return name

    def _compile(self, name: str) -> CompiledTemplate:
        compiled = self._compiled.get(name)
        if compiled is None:
            # Imported here: the sandbox brings jinja2, which a run without chat needn't wait for.
            from tokenmill.tokenizer.template_sandbox import CompiledTemplate

            with self._lock:
                compiled = self._compiled.get(name) or CompiledTemplate(self.sources[name])
                self._compiled[name] = compiled
        return compiled


def _listed(messages: Any) -> list[Any]:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise RequestError("messages must be a list of objects with 'role' and 'content'")
    return list(messages)


def _plain(value: Any, what: str) -> Any:
    """A copy of JSON's types only: a template must not get hold of anything with methods."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, what) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, what) for item in value]
    if isinstance(value, str):
        return str.__str__(value)
    if callable(dump := getattr(value, "model_dump", None)):
        return _plain(dump(), what)
    raise RequestError(
        f"{what} has a value of type {type(value).__name__}; only texts, numbers, lists and objects "
        "can be written into a chat"
    )


def _plain_message(message: Any, reads_parts: bool) -> dict[str, Any]:
    plain = _plain(message, "a message")
    if not isinstance(plain, dict) or not isinstance(plain.get("role"), str):
        raise RequestError("each message must be an object with a 'role' and a 'content'")
    plain = {key: value for key, value in plain.items() if value is not None}
    content = plain.get("content")
    if isinstance(content, list) and not reads_parts:
        plain["content"] = "\n".join(_text_of_part(part) for part in content)
    elif content is not None and not isinstance(content, str | list):
        raise RequestError("a message's content must be text or a list of parts")
    calls = plain.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            function["arguments"] = _read_arguments(function["arguments"])
    return plain


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if (
        isinstance(part, dict)
        and part.get("type", "text") == "text"
        and isinstance(part.get("text"), str)
    ):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise RequestError(f"this model's messages can only have text parts, not {kind!r}")


def _read_arguments(text: str) -> Any:
    """Arguments of a tool call, which clients send as JSON and templates write as JSON."""
    try:
        arguments = json.loads(text)
    except ValueError:
        return text
    return arguments if isinstance(arguments, dict) else text


def _mark_end(conversation: list[dict[str, Any]]) -> str:
    """Put the mark behind the last message's text, and return that text."""
    last = conversation[-1] if conversation else {}
    content = last.get("content")
    if isinstance(content, str):
        last["content"] = content + CONTINUE_MARK
        return content
    for part in reversed(content if isinstance(content, list) else []):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text: str = part["text"]
            part["text"] = text + CONTINUE_MARK
            return text
    raise RequestError("there is no last message with text to continue")


def _up_to_mark(text: str, last_text: str) -> str:
    at = text.rfind(CONTINUE_MARK.strip())
    if at < 0 or last_text.strip() not in text:
        raise RequestError(
            "the last message can't be continued: the model's chat template changes it or leaves it out"
        )
    if text.startswith(CONTINUE_MARK, at):
        return text[:at]
    # The template stripped the mark's space, so it would have stripped the message's own as well.
    return text[:at].rstrip()
