"""/score and /rerank: how alike texts are, by the cosine of their vectors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tokenmill.engine.outputs import EmbeddingRequestOutput
from tokenmill.engine.pooling import cosine
from tokenmill.server.connection import JsonResponse, read_json, while_connected
from tokenmill.server.embeddings import (
    MAX_INPUTS,
    VectorOptions,
    embed_all,
    read_vector_options,
    vector_usage,
)
from tokenmill.server.fields import Fields
from tokenmill.server.protocol import ServingEngine, check_model

SCORE_PATHS = ("/score", "/v1/score")
RERANK_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")


@dataclass(frozen=True)
class ScoreRequest:
    """Body of /score: one text and many, or as many on both sides."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    options: VectorOptions


@dataclass(frozen=True)
class RerankRequest:
    """Body of /rerank. top_n: how many results to show; None shows all."""

    query: str
    documents: tuple[str, ...]
    top_n: int | None
    return_documents: bool
    options: VectorOptions


def read_score(fields: Fields) -> ScoreRequest:
    """Raises ApiError (400) naming the field that is wrong."""
    first, second = _texts(fields, "text_1"), _texts(fields, "text_2")
    if len(first) not in (1, len(second)):
        raise fields.wrong(
            "text_1",
            f"has {len(first)} texts and text_2 has {len(second)}; give one, or as many on both sides",
        )
    return ScoreRequest(first, second, read_vector_options(fields))


def read_rerank(fields: Fields) -> RerankRequest:
    """Raises ApiError (400) naming the field that is wrong."""
    query = fields.text("query")
    if not query:
        raise fields.wrong("query", "must be a text that is not empty")
    return RerankRequest(
        query=query,
        documents=_documents(fields),
        top_n=fields.integer("top_n", minimum=0) or None,
        return_documents=fields.flag("return_documents", True),
        options=read_vector_options(fields),
    )


class ScoringEndpoints:
    """Compares texts. names: of the model, the first one first."""

    def __init__(self, engine: ServingEngine, names: Sequence[str], max_body_bytes: int) -> None:
        self._engine = engine
        self._names = names
        self._max_body_bytes = max_body_bytes

    async def score(self, request: Request) -> Response:
        """The score of each pair."""
        body = await read_json(request, self._max_body_bytes)
        parsed = read_score(Fields(body))
        model = check_model(parsed.options.model, self._names)
        name = f"score-{uuid.uuid4().hex}"
        first, second = parsed.first, parsed.second
        found = await self._vectors(request, (*first, *second), parsed.options, name)
        left, right = found[: len(first)], found[len(first) :]
        scores = _cosines(left * len(right) if len(left) == 1 else left, right)
        answer = {
            "id": name,
            "object": "list",
            "created": int(time.time()),
            "model": model,
            "data": [
                {"index": index, "object": "score", "score": score}
                for index, score in enumerate(scores)
            ],
            "usage": vector_usage(found),
        }
        return JsonResponse(answer)

    async def rerank(self, request: Request) -> Response:
        """Documents in the order of their likeness to the query."""
        body = await read_json(request, self._max_body_bytes)
        parsed = read_rerank(Fields(body))
        model = check_model(parsed.options.model, self._names)
        name = f"rerank-{uuid.uuid4().hex}"
        texts = (parsed.query, *parsed.documents)
        query, *documents = found = await self._vectors(request, texts, parsed.options, name)
        scores = _cosines([query] * len(documents), documents)
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        results = [
            {
                "index": index,
                **({"document": {"text": parsed.documents[index]}} if parsed.return_documents else {}),
                "relevance_score": scores[index],
            }
            for index in order[: parsed.top_n]
        ]
        return JsonResponse(
            {"id": name, "model": model, "usage": vector_usage(found), "results": results}
        )

    async def _vectors(
        self, request: Request, texts: Sequence[str], options: VectorOptions, name: str
    ) -> list[EmbeddingRequestOutput]:
        return await while_connected(request, embed_all(self._engine, texts, options, name))


def _cosines(
    left: Sequence[EmbeddingRequestOutput], right: Sequence[EmbeddingRequestOutput]
) -> list[float]:
    return [cosine(a.outputs.embedding, b.outputs.embedding) for a, b in zip(left, right, strict=True)]


def _texts(fields: Fields, name: str) -> tuple[str, ...]:
    """One text, or a list of texts."""
    value = fields.any(name)
    return _checked(fields, name, [value] if isinstance(value, str) else value)


def _documents(fields: Fields) -> tuple[str, ...]:
    """Texts, or objects with "text"."""
    values = [
        value.get("text") if isinstance(value, dict) else value
        for value in fields.array("documents") or ()
    ]
    return _checked(fields, "documents", values)


def _checked(fields: Fields, name: str, texts: Any) -> tuple[str, ...]:
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise fields.wrong(name, "must be a list of texts that are not empty")
    if len(texts) > MAX_INPUTS:
        raise fields.wrong(name, f"must be at most {MAX_INPUTS} texts")
    return tuple(texts)
