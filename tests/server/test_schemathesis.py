"""The server against its own description: generated requests, good and bad, to a fake engine."""

from __future__ import annotations

import re
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    positive_data_acceptance,
    response_schema_conformance,
)

from tests.server.fake_engine import FakeEngine
from tokenmill.server.app import create_app

load_all_checks()


def load() -> Any:
    app = create_app(FakeEngine(obeys_marks=False, max_model_len=40), model_names=("fake", "other"))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


schema, streams = load(), load()
streams.config.generation.update(modes=[schemathesis.GenerationMode.POSITIVE])

BETWEEN_FIELDS = (
    "stream_options needs stream",
    "top_logprobs needs logprobs",
    r"max_tokens must be at least 1, unless echo",
    r"min_tokens \(\d+\) is more than max_tokens",
    "prompt_logprobs can't be streamed",
    "structured_outputs can't be given beside response_format",
    "best_of must equal n",
    r".*logprobs is \d+, but this server gives at most",
    "suffix can't be combined with",
    "suffix needs",
    r"text_1 has \d+ texts and text_2 has",
    "prompt is missing; give a text, or messages",
    "prompt and messages exclude each other",
    r"text.format.(name|schema) is missing",
    r"(text|output_config).format can only be text",
    "messages have no content",
    "tools has two functions called",
    "tool_choice (needs tools|must name)",
    r"output_config.format.(type must be json_schema|schema is missing)",
)
"""Why a body may be refused although each of its fields is as described."""

BY_MODEL = (
    "there is no role",
    ".* not in the vocabulary",
    "the prompt is longer",
    "dimensions is",
    "the prompt is empty",
)
"""What only a model can say, here the fake one."""


bounded = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@schema.parametrize()
@bounded
def test_the_server_does_as_it_says(case: schemathesis.Case) -> None:
    response = case.call_and_validate(excluded_checks=[positive_data_acceptance])
    assert case.meta is not None
    if case.meta.generation.mode.is_positive and response.status_code == 400:
        message = response.json()["error"]["message"]
        assert any(re.match(why, message) for why in (*BETWEEN_FIELDS, *BY_MODEL)), message


MODEST = {
    "stream": True,
    "max_tokens": 3,
    "prompt": "ab",
    "messages": [{"role": "user", "content": "ab"}],
    "input": "ab",
}
"""What makes it likely that a generated body gets a stream at all."""

RARE = ("best_of", "min_tokens", "prompt_logprobs", "suffix", "structured_outputs", "response_format")
"""Fields that hardly go with what else is generated."""


@streams.include(path_regex="/(completions|responses|messages)$", method="POST").parametrize()
@bounded
def test_streams_are_as_it_says(case: schemathesis.Case) -> None:
    """Every event is checked."""
    fields = case.operation.body[0].raw_schema["properties"]
    given = {name: value for name, value in case.body.items() if name not in RARE}
    case.body = given | {name: value for name, value in MODEST.items() if name in fields}
    response = case.call()
    if response.status_code == 200:
        assert response.headers["content-type"][0].startswith("text/event-stream")
    case.validate_response(response, checks=[not_a_server_error, response_schema_conformance])


def test_a_document_that_is_wrong_is_noticed() -> None:
    """The checks bite: the same requests against a document that promises too much."""
    served = schema.raw_schema
    wrong = {**served, "paths": {"/v1/models": served["paths"]["/v1/models"]}}
    wrong["components"] = {}
    wrong["paths"]["/v1/models"] = {
        "get": {
            "responses": {
                "200": {
                    "description": "",
                    "content": {
                        "application/json": {"schema": {"type": "object", "required": ["nothing"]}}
                    },
                }
            }
        }
    }
    app = create_app(FakeEngine(), model_names=("fake",))
    loaded = schemathesis.openapi.from_dict(wrong)
    loaded.app = app
    case = loaded["/v1/models"]["get"].Case()
    with pytest.raises(BaseException, match="nothing"):
        case.call_and_validate()
