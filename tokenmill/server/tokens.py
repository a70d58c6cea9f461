"""/tokenize and /detokenize: what the model's tokenizer makes of texts and of token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.chat_prompt import chat_prompt
from tokenmill.server.connection import JsonResponse, read_json, while_connected
from tokenmill.server.fields import Fields
from tokenmill.server.prompts import tokenizer_of
from tokenmill.server.protocol import (
    ChatRequest,
    ServingEngine,
    ServingTokenizer,
    check_model,
    read_chat,
)


@dataclass(frozen=True)
class TokenizeRequest:
    """Body of /tokenize. source: a text, or a conversation for the chat template."""

    model: str | None
    source: str | ChatRequest
    add_special_tokens: bool
    return_token_strs: bool


def read_tokenize(fields: Fields) -> TokenizeRequest:
    """Raises ApiError (400) naming the field that is wrong."""
    text = fields.text("prompt")
    if text is None and not fields.has("messages"):
        raise fields.wrong("prompt", "is missing; give a text, or messages")
    if text is not None and fields.has("messages"):
        raise fields.wrong("prompt", "and messages exclude each other; give one of them")
    # Beside a text, the fields that go with messages have no effect, but are checked all the same.
    given = fields if text is None else fields.plus(messages=[{"role": "user", "content": text}])
    chat = read_chat(given, SamplingParams())
    return TokenizeRequest(
        model=fields.text("model"),
        source=chat if text is None else text,
        # Chat templates write what begins a text themselves.
        add_special_tokens=fields.flag("add_special_tokens", text is not None),
        return_token_strs=fields.flag("return_token_strs"),
    )


@dataclass(frozen=True)
class DetokenizeRequest:
    """Body of /detokenize."""

    model: str | None
    tokens: list[int]


def read_detokenize(fields: Fields) -> DetokenizeRequest:
    """Raises ApiError (400) naming the field that is wrong."""
    tokens = fields.integers("tokens")
    if tokens is None:
        raise fields.wrong("tokens", "is missing")
    return DetokenizeRequest(fields.text("model"), tokens)


class TokenEndpoints:
    """Texts to token ids and back. names: of the model, the first one first."""

    def __init__(self, engine: ServingEngine, names: Sequence[str], max_body_bytes: int) -> None:
        self._engine = engine
        self._names = names
        self._max_body_bytes = max_body_bytes

    async def tokenize(self, request: Request) -> Response:
        """The tokens of a text or of a conversation."""
        parsed = read_tokenize(Fields(await read_json(request, self._max_body_bytes)))
        check_model(parsed.model, self._names)
        # Templates and long texts take a while, and must not hold up other requests' tokens.
        work = asyncio.to_thread(_tokenize, tokenizer_of(self._engine), parsed)
        answer = await while_connected(request, work)
        return JsonResponse({**answer, "max_model_len": self._engine.max_model_len})

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids, special tokens included."""
        fields = Fields(await read_json(request, self._max_body_bytes))
        parsed = read_detokenize(fields)
        check_model(parsed.model, self._names)
        work = asyncio.to_thread(_detokenize, tokenizer_of(self._engine), fields, parsed.tokens)
        return JsonResponse({"prompt": await while_connected(request, work)})


def _tokenize(tokenizer: ServingTokenizer, parsed: TokenizeRequest) -> dict[str, Any]:
    text = parsed.source
    if not isinstance(text, str):
        text = chat_prompt(tokenizer, text)["prompt"]
    tokens = tokenizer.encode(text, parsed.add_special_tokens)
    names = [tokenizer.id_to_token(token) or "" for token in tokens]
    return {
        "count": len(tokens),
        "tokens": tokens,
        "token_strs": names if parsed.return_token_strs else None,
    }


def _detokenize(tokenizer: ServingTokenizer, fields: Fields, tokens: list[int]) -> str:
    unknown = next((token for token in tokens if tokenizer.id_to_token(token) is None), None)
    if unknown is not None:
        raise fields.wrong("tokens", f"has {unknown}, which is not in the vocabulary")
    return tokenizer.decode(tokens, skip_special_tokens=False)
