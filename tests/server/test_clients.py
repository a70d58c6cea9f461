"""Frameworks that speak the OpenAI protocol, against a real server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

from tests.server.conftest import running
from tests.server.fake_engine import FakeEngine

# Else it asks the network for prices as soon as it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

# Of litellm with the newest pydantic.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture
def url(engine: FakeEngine) -> Iterator[str]:
    with running(engine) as address:
        yield f"{address}/v1"


def langchain(url: str, **options: object) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=url, api_key="none", model="fake", max_retries=0, temperature=0.5, **options
    )


# langchain-openai


def test_langchain_answers(url: str, engine: FakeEngine) -> None:
    answer = langchain(url, max_tokens=4).invoke([SystemMessage("be brief"), HumanMessage("abc")])
    assert isinstance(answer, AIMessage)
    assert answer.content == "abca"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] == 3
    assert answer.usage_metadata["output_tokens"] == 4
    assert answer.response_metadata["finish_reason"] == "length"
    assert engine.asked[0].params.temperature == 0.5
    assert engine.asked[0].params.max_tokens == 4


def test_langchain_streams(url: str) -> None:
    pieces = list(langchain(url, max_tokens=4, stream_usage=True).stream("abc"))
    assert "".join(str(piece.content) for piece in pieces) == "abca"
    assert len([piece for piece in pieces if piece.content]) == 4
    usage = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
    assert [found["output_tokens"] for found in usage] == [4]


def test_langchain_without_blocking(url: str) -> None:
    async def talk() -> tuple[str, str]:
        model = langchain(url, max_tokens=4)
        whole = await model.ainvoke("abc")
        return str(whole.content), "".join([str(p.content) async for p in model.astream("abc")])

    assert asyncio.run(talk()) == ("abca", "abca")


def test_langchain_logprobs(url: str) -> None:
    answer = langchain(url, max_tokens=2, logprobs=True, top_logprobs=2).invoke("abc")
    content = answer.response_metadata["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["a", "b"]
    assert [top["token"] for top in content[0]["top_logprobs"]] == ["a", "b"]


def test_langchain_completions(url: str) -> None:
    model = OpenAI(base_url=url, api_key="none", model="fake", max_retries=0, max_tokens=4)
    assert model.invoke("abc") == "abca"
    assert "".join(model.stream("abc")) == "abca"
    assert [found[0].text for found in model.generate(["ab", "cd"]).generations] == ["abab", "cdcd"]


def test_langchain_errors(url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="too high"):
        langchain(url).invoke("no!")
    with pytest.raises(openai.NotFoundError, match="no model"):
        ChatOpenAI(base_url=url, api_key="none", model="gone", max_retries=0).invoke("abc")


# litellm


def lite(url: str, **options: object) -> dict[str, object]:
    return {
        "model": "openai/fake",
        "api_base": url,
        "api_key": "none",
        "messages": [{"role": "user", "content": "abc"}],
        "max_tokens": 4,
        "num_retries": 0,
        **options,
    }


def test_litellm_answers(url: str, engine: FakeEngine) -> None:
    answer = litellm.completion(**lite(url, seed=7, stop=["zz"]))
    assert answer.choices[0].message.content == "abca"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 4
    assert engine.asked[0].params.seed == 7
    assert engine.asked[0].params.stop == ("zz",)


def test_litellm_streams(url: str) -> None:
    pieces = list(litellm.completion(**lite(url, stream=True, stream_options={"include_usage": True})))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == "abca"
    usage = [piece.usage for piece in pieces if getattr(piece, "usage", None)]
    assert usage[-1].completion_tokens == 4


def test_litellm_without_blocking(url: str) -> None:
    async def talk() -> tuple[str, str]:
        whole = await litellm.acompletion(**lite(url))
        stream = await litellm.acompletion(**lite(url, stream=True))
        pieces = [piece.choices[0].delta.content or "" async for piece in stream]
        return whole.choices[0].message.content, "".join(pieces)

    assert asyncio.run(talk()) == ("abca", "abca")


def test_litellm_completions(url: str) -> None:
    answer = litellm.text_completion(
        model="text-completion-openai/fake", api_base=url, api_key="none", prompt="abc", max_tokens=4
    )
    assert answer.choices[0].text == "abca"


def test_litellm_speaks_to_it_as_to_vllm(url: str, engine: FakeEngine) -> None:
    answer = litellm.completion(**lite(url, model="hosted_vllm/fake", extra_body={"top_k": 3}))
    assert answer.choices[0].message.content == "abca"
    assert engine.asked[0].params.top_k == 3


def test_litellm_errors(url: str) -> None:
    with pytest.raises(litellm.BadRequestError, match="too high"):
        litellm.completion(**lite(url, messages=[{"role": "user", "content": "no!"}]))
    with pytest.raises(litellm.NotFoundError, match="no model"):
        litellm.completion(**lite(url, model="openai/gone"))
