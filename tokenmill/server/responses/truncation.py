"""Leaves out the beginning of a conversation that is longer than the model can read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tokenmill.server.chat_prompt import chat_prompt
from tokenmill.server.protocol import ChatRequest, ServingEngine

Message = dict[str, Any]


def truncated(engine: ServingEngine, chat: ChatRequest) -> ChatRequest:
    """The chat without as many of its oldest turns as must go so that the answer has room.

    Room is what the request allows for its answer, or else a quarter of the context. May take a while:
    keep it off the event loop. Raises ApiError or RequestError if the template refuses the messages.
    """
    limit = engine.max_model_len
    room = limit - (chat.common.sampling.max_tokens or limit // 4)

    def fits(messages: Sequence[Message]) -> bool:
        prompt = chat_prompt(engine.tokenizer, replace(chat, messages=list(messages)))
        return len(prompt["prompt_token_ids"]) <= room

    return replace(chat, messages=without_oldest(chat.messages, fits))


def without_oldest(
    messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool]
) -> list[Message]:
    """The longest end of the conversation that fits, after the system's messages that begin it.

    What goes are whole turns, from one message of the user to the next, so that no result of a tool
    loses its call. The last turn stays, whether it fits or not.
    """
    head = next((n for n, message in enumerate(messages) if message["role"] != "system"), 0)
    turns = [n for n, message in enumerate(messages) if n > head and message["role"] == "user"]
    starts = [head, *turns]

    def rest(start: int) -> list[Message]:
        return [*messages[:head], *messages[start:]]

    if len(starts) == 1:
        return list(messages)
    # Among all but the last, which needs no trial; with fewer turns it never fits worse.
    first = bisect_left(starts[:-1], True, key=lambda start: fits(rest(start)))
    return rest(starts[first])
