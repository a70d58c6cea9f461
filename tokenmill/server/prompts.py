"""How prompts become token ids, where a request has a say in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tokenmill.server.errors import ApiError
from tokenmill.server.fields import Fields
from tokenmill.server.protocol import Prompt, ServingEngine, ServingTokenizer

WHOLE_CONTEXT = -1


@dataclass(frozen=True)
class PromptOptions:
    """add_special_tokens: begin and end texts as the model wants it. truncate: keep this many of the
    last tokens (-1: as many as fit); None refuses prompts that are too long.
    """

    add_special_tokens: bool = True
    truncate: int | None = None


def read_prompt_options(fields: Fields) -> PromptOptions:
    """Raises ApiError (400) naming the field that is wrong."""
    truncate = fields.integer("truncate_prompt_tokens", minimum=WHOLE_CONTEXT)
    if truncate == 0:
        raise fields.wrong("truncate_prompt_tokens", "must be at least 1, or -1 for what fits")
    return PromptOptions(fields.flag("add_special_tokens", True), truncate)


def tokenizer_of(engine: ServingEngine) -> ServingTokenizer:
    """Raises ApiError (400) if the model has none."""
    if engine.tokenizer is None:
        raise ApiError("this model has no tokenizer; give prompts as token ids")
    return engine.tokenizer


async def prepare_prompt(
    engine: ServingEngine, prompt: Prompt, options: PromptOptions, *, room: int
) -> Any:
    """The prompt as the engine takes it. room: most tokens that fit."""
    if options == PromptOptions() or (isinstance(prompt, list) and options.truncate is None):
        return prompt
    if isinstance(prompt, str):
        # The tokenizer doesn't hold the interpreter's lock, so that other requests go on.
        ids = await asyncio.to_thread(tokenizer_of(engine).encode, prompt, options.add_special_tokens)
    else:
        ids = prompt
    if options.truncate is not None:
        most = room if options.truncate == WHOLE_CONTEXT else options.truncate
        ids = ids[-max(most, 1) :]
    return {"prompt": prompt, "prompt_token_ids": ids} if isinstance(prompt, str) else ids
