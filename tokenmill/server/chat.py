"""/v1/chat/completions: a conversation in, its next message out."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from tokenmill.engine.outputs import CompletionOutput, RequestOutput
from tokenmill.server.chat_prompt import chat_prompt
from tokenmill.server.logprobs import chat_logprobs, prompt_logprobs
from tokenmill.server.protocol import ChatRequest, ServingEngine
from tokenmill.server.usage import Usage


class ChatCompletion:
    """One request under way. model: the name in the answer."""

    def __init__(self, engine: ServingEngine, request: ChatRequest, model: str) -> None:
        self._engine = engine
        self._request = request
        self._model = model
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        usage = Usage()
        last: RequestOutput | None = None
        async with aclosing(await self._outputs()) as outputs:
            async for out in outputs:
                last = out
        assert last is not None
        usage.add(0, last)
        choices = [self._choice(part) for part in last.outputs]
        answer = {**self._head("chat.completion"), "choices": choices, "usage": usage.values()}
        if self._request.common.return_token_ids:
            answer["prompt_token_ids"] = last.prompt_token_ids
        shown = self._request.common.sampling.prompt_logprobs
        if shown is not None:
            answer["prompt_logprobs"] = prompt_logprobs(last, shown)
        return answer

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The answer in pieces."""
        common, usage = self._request.common, Usage()
        ended: set[int] = set()
        head = self._head("chat.completion.chunk")
        async with aclosing(await self._outputs()) as outputs:
            begun = False
            async for out in outputs:
                usage.add(0, out)
                if not begun:
                    begun = True
                    first = {**head, **usage.beside_piece(common)}
                    if common.return_token_ids:
                        first["prompt_token_ids"] = out.prompt_token_ids
                    for number in range(common.sampling.n):
                        delta = {"role": "assistant", "content": ""}
                        yield {**first, "choices": [_chunk_choice(number, delta)]}
                for part in out.outputs:
                    if part.index in ended:
                        continue
                    if part.finish_reason is not None:
                        ended.add(part.index)
                    wanted = part.logprobs or (common.return_token_ids and part.token_ids)
                    if not part.text and not wanted and part.finish_reason is None:
                        continue
                    choices = [self._delta(part)]
                    yield {**head, "choices": choices, **usage.beside_piece(common)}
        if common.include_usage:
            yield {**head, "choices": [], "usage": usage.values()}

    async def _outputs(self) -> AsyncGenerator[RequestOutput, None]:
        common = self._request.common
        # A template may take a while, and must not hold up other requests' tokens.
        prompt = await asyncio.to_thread(chat_prompt, self._engine.tokenizer, self._request)
        outputs: Any = self._engine.generate(
            prompt,
            common.sampling,
            self._id,
            priority=common.priority,
            cache_salt=common.cache_salt,
        )
        return _as_generator(outputs)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _choice(self, part: CompletionOutput) -> dict[str, Any]:
        choice = {
            "index": part.index,
            "message": {"role": "assistant", "content": part.text, "refusal": None},
            "logprobs": self._logprobs(part),
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
        }
        if self._request.common.return_token_ids:
            choice["token_ids"] = part.token_ids
        return choice

    def _delta(self, part: CompletionOutput) -> dict[str, Any]:
        choice = _chunk_choice(part.index, {"content": part.text} if part.text else {})
        choice["logprobs"] = self._logprobs(part)
        choice["finish_reason"] = part.finish_reason
        if part.finish_reason is not None:
            choice["stop_reason"] = part.stop_reason
        if self._request.common.return_token_ids:
            choice["token_ids"] = part.token_ids
        return choice

    def _logprobs(self, part: CompletionOutput) -> dict[str, Any] | None:
        count = self._request.common.sampling.logprobs
        if count is None or part.logprobs is None:
            return None
        return chat_logprobs(part, self._engine.tokenizer, count)


def _chunk_choice(number: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}


async def _as_generator(outputs: AsyncIterator[RequestOutput]) -> AsyncGenerator[RequestOutput, None]:
    source: Any = outputs
    async with aclosing(source):
        async for out in source:
            yield out
