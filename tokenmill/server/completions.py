"""/v1/completions: prompts in, continuations out."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.engine.outputs import CompletionOutput, RequestOutput
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.errors import ApiError
from tokenmill.server.fields import Fields
from tokenmill.server.logprobs import LegacyLogprobs, prompt_logprobs
from tokenmill.server.merge import merge
from tokenmill.server.prompts import (
    PromptOptions,
    prepare_prompt,
    read_prompt_options,
    tokenizer_of,
)
from tokenmill.server.protocol import Common, Prompt, ServingEngine, read_common, read_prompts
from tokenmill.server.sampling import read_sampling
from tokenmill.server.usage import Usage
from tokenmill.tokenizer.fill_in_middle import FillIn, find_fill_in

DEFAULT_TOKENS = 16
"""Length of completions whose request does not say, as in the OpenAI API."""


@dataclass(frozen=True)
class CompletionRequest:
    """Body of /v1/completions.

    suffix: what follows the answer; None if nothing has to. echo: the prompt is part of the text.
    scores_only: nothing is to be generated (max_tokens 0), only the prompt is to be echoed.
    prompt_logprobs: how many alternatives to show for the prompt's tokens; None shows none.
    """

    common: Common
    prompts: tuple[Prompt, ...]
    options: PromptOptions
    suffix: str | None
    echo: bool
    scores_only: bool
    prompt_logprobs: int | None


def read_completion(fields: Fields, defaults: SamplingParams) -> CompletionRequest:
    """Raises ApiError (400) naming the field that is wrong."""
    echo, stream = fields.flag("echo"), fields.flag("stream")
    max_tokens = fields.integer("max_tokens", minimum=0)
    if max_tokens is None:
        max_tokens = DEFAULT_TOKENS
    if max_tokens == 0 and not echo:
        raise fields.wrong("max_tokens", "must be at least 1, unless echo is set")
    logprobs, shown = fields.integer("logprobs", minimum=0), fields.integer("prompt_logprobs")
    more = {}
    if echo and logprobs is not None:
        # An echoed prompt has log-probabilities, too.
        more = {"prompt_logprobs": max(logprobs, shown or 0)}
    sampling = read_sampling(
        fields, defaults, max_tokens=max(max_tokens, 1), logprobs=logprobs, stream=stream, **more
    )
    suffix, options = fields.text("suffix") or None, read_prompt_options(fields)
    prompts = read_prompts(fields, may_be_empty=suffix is not None)
    if suffix is not None:
        if echo:
            raise fields.wrong("suffix", "can't be combined with echo; leave out one of them")
        if options != PromptOptions():
            raise fields.wrong(
                "suffix", "can't be combined with truncate_prompt_tokens or add_special_tokens"
            )
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise fields.wrong("suffix", "needs prompts that are texts")
    return CompletionRequest(
        common=read_common(fields, sampling),
        prompts=prompts,
        options=options,
        suffix=suffix,
        echo=echo,
        scores_only=max_tokens == 0,
        prompt_logprobs=shown,
    )


class Completion:
    """One request under way. model: the name in the answer.

    Raises ApiError (400) if there is a suffix, but the model can't fill in.
    """

    def __init__(self, engine: ServingEngine, request: CompletionRequest, model: str) -> None:
        self._engine = engine
        self._request = request
        self._model = model
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._fill_in = None if request.suffix is None else _fill_in(engine)

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        usage = Usage()
        last: dict[int, RequestOutput] = {}
        async with aclosing(self._outputs()) as outputs:
            async for index, out in outputs:
                last[index] = out
        choices = []
        for index, out in sorted(last.items()):
            usage.add(index, out, generated=not self._request.scores_only)
            choices += [self._choice(index, out, part) for part in out.outputs]
        return {**self._head(), "choices": choices, "usage": usage.values()}

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The answer in pieces."""
        common, usage = self._request.common, Usage()
        logprobs: dict[int, LegacyLogprobs] = {}
        ended: set[int] = set()
        async with aclosing(self._outputs()) as outputs:
            async for index, out in outputs:
                usage.add(index, out, generated=not self._request.scores_only)
                for part in out.outputs:
                    number = index * common.sampling.n + part.index
                    if number in ended:
                        continue
                    if self._request.scores_only:
                        part = replace(part, text="", token_ids=[], logprobs=part.logprobs and [])
                    begins = number not in logprobs
                    text = (self._echoed(index, out) if begins else "") + part.text
                    if part.finish_reason is not None:
                        ended.add(number)
                    wanted = part.logprobs or (common.return_token_ids and part.token_ids)
                    if not text and not wanted and part.finish_reason is None:
                        continue
                    if begins:
                        logprobs[number] = self._begun_logprobs(out)
                    choice = self._base_choice(number, text, part)
                    if part.logprobs is not None:
                        count = common.sampling.logprobs or 0
                        logprobs[number].add(part.token_ids, part.logprobs, count)
                        choice["logprobs"] = logprobs[number].take()
                    if common.return_token_ids:
                        choice["token_ids"] = part.token_ids
                        if begins:
                            choice["prompt_token_ids"] = out.prompt_token_ids
                    yield {**self._head(), "choices": [choice], **usage.beside_piece(common)}
        if common.include_usage:
            yield {**self._head(), "choices": [], "usage": usage.values()}

    def _outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        return merge([self._answers(*entry) for entry in enumerate(self._request.prompts)])

    async def _answers(self, index: int, prompt: Prompt) -> AsyncGenerator[RequestOutput, None]:
        """The engine's outputs for one prompt."""
        common, sampling = self._request.common, self._request.common.sampling
        prepared: Any
        if self._fill_in is not None:
            prepared = await asyncio.to_thread(
                self._fill_in.prompt, str(prompt), self._request.suffix or ""
            )
            stops = (*(sampling.stop_token_ids or ()), *self._fill_in.ends)
            if not sampling.ignore_eos:
                sampling = replace(sampling, stop_token_ids=stops)
        else:
            room = self._engine.max_model_len - (sampling.max_tokens or 1)
            prepared = await prepare_prompt(self._engine, prompt, self._request.options, room=room)
        outputs: Any = self._engine.generate(
            prepared,
            sampling,
            f"{self._id}-{index}",
            priority=common.priority,
            cache_salt=common.cache_salt,
        )
        async with aclosing(outputs):
            async for out in outputs:
                yield out

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
        }

    def _base_choice(self, number: int, text: str, part: CompletionOutput) -> dict[str, Any]:
        # One token was generated although none was asked for; what it ended did not end the answer.
        scores_only = self._request.scores_only
        return {
            "index": number,
            "text": text,
            "logprobs": None,
            "finish_reason": "length" if scores_only else part.finish_reason,
            "stop_reason": None if scores_only else part.stop_reason,
        }

    def _choice(self, index: int, out: RequestOutput, part: CompletionOutput) -> dict[str, Any]:
        request, sampling = self._request, self._request.common.sampling
        kept = 0 if request.scores_only else len(part.token_ids)
        text = self._echoed(index, out) + ("" if request.scores_only else part.text)
        choice = self._base_choice(index * sampling.n + part.index, text, part)
        if sampling.logprobs is not None:
            logprobs = self._begun_logprobs(out)
            logprobs.add(part.token_ids[:kept], (part.logprobs or [])[:kept], sampling.logprobs)
            choice["logprobs"] = logprobs.take()
        if request.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(out, request.prompt_logprobs)
        if request.common.return_token_ids:
            choice["token_ids"] = part.token_ids[:kept]
            choice["prompt_token_ids"] = out.prompt_token_ids
        return choice

    def _begun_logprobs(self, out: RequestOutput) -> LegacyLogprobs:
        """With those of the prompt, if that is echoed."""
        logprobs = LegacyLogprobs()
        if self._request.echo and out.prompt_logprobs is not None:
            count = self._request.common.sampling.logprobs or 0
            logprobs.add(out.prompt_token_ids, out.prompt_logprobs, count)
            logprobs.name_first(self._text_of(out.prompt_token_ids[:1]))
        return logprobs

    def _echoed(self, index: int, out: RequestOutput) -> str:
        if not self._request.echo:
            return ""
        prompt = self._request.prompts[index]
        whole = isinstance(prompt, str) and self._request.options.truncate is None
        return str(prompt) if whole else self._text_of(out.prompt_token_ids)

    def _text_of(self, token_ids: Sequence[int]) -> str:
        tokenizer = self._engine.tokenizer
        return "" if tokenizer is None else tokenizer.decode(token_ids, skip_special_tokens=False)


def _fill_in(engine: ServingEngine) -> FillIn:
    found = find_fill_in(tokenizer_of(engine))
    if found is None:
        raise ApiError(
            "suffix needs a model that fills in the middle, and this one has no tokens for it; leave "
            "it out, or serve a code model",
            param="suffix",
        )
    return found
