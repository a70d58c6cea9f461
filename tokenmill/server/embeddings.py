"""/v1/embeddings: texts in, vectors out."""

from __future__ import annotations

import asyncio
import base64
import sys
import time
import uuid
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from tokenmill.engine.outputs import EmbeddingRequestOutput
from tokenmill.engine.pooling import POOLINGS, PoolingParams
from tokenmill.server.connection import JsonResponse, read_json, while_connected
from tokenmill.server.fields import Fields
from tokenmill.server.prompts import PromptOptions, prepare_prompt, read_prompt_options
from tokenmill.server.protocol import Prompt, ServingEngine, check_model, read_prompts

MAX_INPUTS = 2048
"""Most texts of one request, as in the OpenAI API."""

Encoding = Literal["float", "base64"]
ENCODINGS: tuple[Encoding, ...] = ("float", "base64")


@dataclass(frozen=True)
class VectorOptions:
    """How texts become vectors, and how the engine treats them.

    model: name asked for, or None. priority: smallest first, if the engine is set up so. cache_salt:
    only requests with the same one share cached beginnings.
    """

    model: str | None
    prompt: PromptOptions
    pooling: PoolingParams
    priority: int
    cache_salt: str | None


@dataclass(frozen=True)
class EmbeddingRequest:
    """Body of /v1/embeddings."""

    inputs: tuple[Prompt, ...]
    options: VectorOptions
    encoding: Encoding


def read_embedding(fields: Fields) -> EmbeddingRequest:
    """Raises ApiError (400) naming the field that is wrong."""
    fields.refuse(("messages",))
    encoding = fields.text("encoding_format") or "float"
    if encoding not in ENCODINGS:
        raise fields.wrong("encoding_format", f"must be one of {', '.join(ENCODINGS)}")
    return EmbeddingRequest(
        inputs=read_prompts(fields, "input", MAX_INPUTS),
        options=read_vector_options(
            fields,
            dimensions=fields.integer("dimensions", minimum=1),
            normalize=fields.flag("normalize", True),
        ),
        encoding=encoding,
    )


def read_vector_options(
    fields: Fields, *, dimensions: int | None = None, normalize: bool = True
) -> VectorOptions:
    """What all requests for vectors share. Raises ApiError (400) naming the field that is wrong."""
    pooling = fields.text("pooling")
    if pooling not in (None, *POOLINGS):
        raise fields.wrong("pooling", f"must be one of {', '.join(POOLINGS)}")
    return VectorOptions(
        model=fields.text("model"),
        prompt=read_prompt_options(fields),
        pooling=PoolingParams(pooling, dimensions, normalize),
        priority=fields.integer("priority") or 0,
        cache_salt=fields.text("cache_salt"),
    )


class EmbeddingEndpoints:
    """Makes vectors. names: of the model, the first one first."""

    def __init__(self, engine: ServingEngine, names: Sequence[str], max_body_bytes: int) -> None:
        self._engine = engine
        self._names = names
        self._max_body_bytes = max_body_bytes

    async def create(self, request: Request) -> Response:
        """One vector for each input."""
        body = await read_json(request, self._max_body_bytes)
        parsed = read_embedding(Fields(body))
        model = check_model(parsed.options.model, self._names)
        name = f"embd-{uuid.uuid4().hex}"
        found = await while_connected(
            request, embed_all(self._engine, parsed.inputs, parsed.options, name)
        )
        answer = {
            "id": name,
            "object": "list",
            "created": int(time.time()),
            "model": model,
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": encoded(out.outputs.embedding, parsed.encoding),
                }
                for index, out in enumerate(found)
            ],
            "usage": vector_usage(found),
        }
        return JsonResponse(answer)


async def embed_all(
    engine: ServingEngine, prompts: Sequence[Prompt], options: VectorOptions, name: str
) -> list[EmbeddingRequestOutput]:
    """The vectors in the order of the prompts. An error of one ends them all."""

    async def one(index: int, prompt: Prompt) -> EmbeddingRequestOutput:
        prepared = await prepare_prompt(engine, prompt, options.prompt, room=engine.max_model_len)
        return await engine.embed(
            prepared,
            options.pooling,
            f"{name}-{index}",
            priority=options.priority,
            cache_salt=options.cache_salt,
        )

    tasks = [asyncio.ensure_future(one(*entry)) for entry in enumerate(prompts)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def encoded(vector: Sequence[float], encoding: Encoding) -> list[float] | str:
    """Numbers, or their fp32 little-endian bytes in base64."""
    if encoding == "float":
        return list(vector)
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def vector_usage(found: Sequence[EmbeddingRequestOutput]) -> dict[str, Any]:
    """Tokens of all texts, in the OpenAI API's words."""
    tokens = sum(len(out.prompt_token_ids) for out in found)
    return {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": sum(out.num_cached_tokens for out in found)},
    }
