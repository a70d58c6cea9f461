"""Embeddings, scores and reranking."""

from __future__ import annotations

from tokenmill.engine.pooling import POOLINGS
from tokenmill.server.embeddings import ENCODINGS, MAX_INPUTS, read_embedding
from tokenmill.server.openapi.operation import Answer, Body, Operation
from tokenmill.server.openapi.schemas import (
    COUNT,
    NUMBER,
    TEXT,
    Schema,
    array,
    choice,
    constant,
    record,
    ref,
)
from tokenmill.server.scoring import RERANK_PATHS, SCORE_PATHS, read_rerank, read_score

ERRORS = (400, 404, 408, 413, 429, 500, 503, 504)

_TEXT = {**TEXT, "minLength": 1}
_IDS = array(COUNT, minItems=1)
_TEXTS = array(_TEXT, minItems=1, maxItems=MAX_INPUTS)

COMMON: dict[str, Schema] = {
    "model": {"description": "A served name; the first one if left out."},
    "pooling": {
        **choice(*POOLINGS),
        "description": "The last token's hidden state, or the mean of all; else the model's own.",
    },
    "add_special_tokens": {"description": "Whether texts begin and end as the model wants it."},
    "truncate_prompt_tokens": {
        "anyOf": [{"const": -1}, {"minimum": 1}],
        "description": "Keep this many of the last tokens; -1: as many as fit.",
    },
    "priority": {"description": "The smallest goes first, if the server is set up so."},
    "cache_salt": {"description": "Only requests with the same one share cached beginnings."},
}

EMBEDDINGS = record(
    {
        "id": TEXT,
        "object": constant("list"),
        "created": COUNT,
        "model": TEXT,
        "data": array(
            record(
                {
                    "object": constant("embedding"),
                    "index": COUNT,
                    "embedding": {"anyOf": [array(NUMBER), TEXT]},
                }
            )
        ),
        "usage": ref("Usage"),
    }
)

SCORES = record(
    {
        "id": TEXT,
        "object": constant("list"),
        "created": COUNT,
        "model": TEXT,
        "data": array(record({"index": COUNT, "object": constant("score"), "score": NUMBER})),
        "usage": ref("Usage"),
    }
)

RANKING = record(
    {
        "id": TEXT,
        "model": TEXT,
        "usage": ref("Usage"),
        "results": array(
            record({"index": COUNT, "relevance_score": NUMBER}, {"document": record({"text": TEXT})})
        ),
    }
)

_SCORE = Body(
    read_score,
    {"text_1": "a", "text_2": "b"},
    {
        **COMMON,
        "text_1": {"anyOf": [_TEXT, _TEXTS], "description": "One text, or one for each of text_2."},
        "text_2": {"anyOf": [_TEXT, _TEXTS], "description": "What it is compared with."},
    },
)

_RERANK = Body(
    read_rerank,
    {"query": "a", "documents": ["b"]},
    {
        **COMMON,
        "query": {"minLength": 1, "description": "What documents are compared with."},
        "documents": {
            "items": {
                "anyOf": [
                    _TEXT,
                    {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]},
                ]
            },
            "minItems": 1,
            "maxItems": MAX_INPUTS,
            "description": 'Texts, or objects with "text".',
        },
        "top_n": {"description": "Most results; 0: all."},
        "return_documents": {"description": "Whether results hold the texts."},
    },
)

OPERATIONS = (
    Operation(
        "/v1/embeddings",
        "post",
        "Vectors of texts",
        {200: Answer("A vector for each input.", ref("Embeddings"))},
        body=Body(
            read_embedding,
            {"input": "a"},
            {
                **COMMON,
                "input": {
                    "anyOf": [
                        _TEXT,
                        _IDS,
                        array({"anyOf": [_TEXT, _IDS]}, minItems=1, maxItems=MAX_INPUTS),
                    ],
                    "description": "A text, token ids, or a list of either.",
                },
                "encoding_format": {
                    **choice(*ENCODINGS),
                    "description": "Numbers, or their fp32 little-endian bytes in base64.",
                },
                "dimensions": {"description": "Keep this many of the first numbers."},
                "normalize": {"description": "Whether vectors are scaled to length 1."},
            },
        ),
        errors=ERRORS,
    ),
    *(
        Operation(
            path,
            "post",
            "How alike texts are",
            {200: Answer("The cosine of each pair's vectors.", ref("Scores"))},
            body=_SCORE,
            errors=ERRORS,
        )
        for path in SCORE_PATHS
    ),
    *(
        Operation(
            path,
            "post",
            "Documents by their likeness to a query",
            {200: Answer("The most alike first.", ref("Ranking"))},
            body=_RERANK,
            errors=ERRORS,
        )
        for path in RERANK_PATHS
    ),
)

COMPONENTS = {"Embeddings": EMBEDDINGS, "Scores": SCORES, "Ranking": RANKING}
