"""/v1/completions: prompts in, continuations out."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from tokenmill.engine.outputs import CompletionOutput, RequestOutput
from tokenmill.server.logprobs import LegacyLogprobs
from tokenmill.server.merge import merge
from tokenmill.server.protocol import CompletionRequest, ServingEngine
from tokenmill.server.usage import Usage


class Completion:
    """One request under way. model: the name in the answer."""

    def __init__(self, engine: ServingEngine, request: CompletionRequest, model: str) -> None:
        self._engine = engine
        self._request = request
        self._model = model
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

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
        tail = {"usage": None} if common.include_usage else {}
        async with aclosing(self._outputs()) as outputs:
            async for index, out in outputs:
                usage.add(index, out, generated=not self._request.scores_only)
                for part in out.outputs:
                    number = index * common.sampling.n + part.index
                    if number in ended:
                        continue
                    text = "" if self._request.scores_only else part.text
                    if number not in logprobs:
                        logprobs[number] = LegacyLogprobs()
                        text = self._echoed(index, out) + text
                    if part.finish_reason is not None:
                        ended.add(number)
                    wanted = part.logprobs or (common.return_token_ids and part.token_ids)
                    if not text and not wanted and part.finish_reason is None:
                        continue
                    choice = self._base_choice(number, text, part)
                    if part.logprobs is not None:
                        count = common.sampling.logprobs or 0
                        logprobs[number].add(part.token_ids, part.logprobs, count)
                        choice["logprobs"] = logprobs[number].take()
                    if common.return_token_ids:
                        choice["token_ids"] = part.token_ids
                    yield {**self._head(), "choices": [choice], **tail}
        if common.include_usage:
            yield {**self._head(), "choices": [], "usage": usage.values()}

    def _outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        common = self._request.common
        return merge(
            [
                self._engine.generate(
                    prompt,
                    common.sampling,
                    f"{self._id}-{index}",
                    priority=common.priority,
                    cache_salt=common.cache_salt,
                )
                for index, prompt in enumerate(self._request.prompts)
            ]
        )

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
            logprobs, count = LegacyLogprobs(), sampling.logprobs
            if request.echo and out.prompt_logprobs is not None:
                logprobs.add(out.prompt_token_ids, out.prompt_logprobs, count)
                logprobs.name_first(self._text_of(out.prompt_token_ids[:1]))
            logprobs.add(part.token_ids[:kept], (part.logprobs or [])[:kept], count)
            choice["logprobs"] = logprobs.take()
        if request.common.return_token_ids:
            choice["token_ids"] = part.token_ids[:kept]
            choice["prompt_token_ids"] = out.prompt_token_ids
        return choice

    def _echoed(self, index: int, out: RequestOutput) -> str:
        if not self._request.echo:
            return ""
        prompt = self._request.prompts[index]
        return prompt if isinstance(prompt, str) else self._text_of(out.prompt_token_ids)

    def _text_of(self, token_ids: Sequence[int]) -> str:
        tokenizer = self._engine.tokenizer
        return "" if tokenizer is None else tokenizer.decode(token_ids, skip_special_tokens=False)
