"""Conversations as prompts, through the model's chat template."""

from __future__ import annotations

from typing import Any

from tokenmill.server.errors import ApiError
from tokenmill.server.protocol import ChatRequest, ServingTokenizer


def chat_prompt(tokenizer: ServingTokenizer | None, request: ChatRequest) -> dict[str, Any]:
    """Text and token ids, as ``generate`` takes them. May take a while: keep it off the event loop.

    Raises ApiError (400) if the model has no chat template, RequestError if it refuses the messages.
    """
    if tokenizer is None or tokenizer.chat_template is None:
        raise ApiError(
            "this model has no chat template (it is a base model); use /v1/completions",
            param="messages",
        )
    text = tokenizer.chat_template.render(request.messages, **request.options)
    # The template has written whatever begins a text.
    return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}
