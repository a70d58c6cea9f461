"""Tokenizers from GGUF metadata: rules, marks, and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.tokenizer.checkpoints import gguf_checkpoint
from tokenmill.errors import CheckpointError
from tokenmill.tokenizer import load_tokenizer


def names(text: str, **overrides: Any) -> list[str | None]:
    tokenizer = load_tokenizer(gguf_checkpoint(**overrides))
    return [tokenizer.id_to_token(token) for token in tokenizer.encode(text)]


def test_merges_and_marks() -> None:
    assert names("hello world<|turn|>12") == ["hello", "Ġwor", "l", "d", "<|turn|>", "12"]
    assert names("a<word>b") == ["a", "<word>", "b"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, ["a"]),
        ({"add_bos_token": True}, ["<|start|>", "a"]),
        ({"add_bos_token": True, "add_eos_token": True}, ["<|start|>", "a", "<|end|>"]),
        ({"pre": "llama-bpe"}, ["<|start|>", "a"]),
        ({"pre": "llama-bpe", "add_bos_token": False}, ["a"]),
        ({"pre": "llama-bpe", "bos_token_id": None}, ["a"]),
    ],
)
def test_bos_and_eos(overrides: dict[str, Any], expected: list[str]) -> None:
    assert names("a", **overrides) == expected


def test_ends_of_an_answer() -> None:
    checkpoint = gguf_checkpoint(eot_token_id=5)
    checkpoint.generation_config = {"eos_token_id": [7]}
    tokenizer = load_tokenizer(checkpoint)
    assert tokenizer.eos_token_ids == {5, 7, tokenizer.token_to_id("<|end|>")}
    assert tokenizer.is_special(5)
    assert tokenizer.special_tokens == {"bos_token": "<|start|>", "eos_token": "<|end|>"}


def test_chat_templates() -> None:
    checkpoint = gguf_checkpoint()
    assert load_tokenizer(checkpoint).chat_template is None
    checkpoint.metadata |= {
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}",
        "tokenizer.chat_template.tool_use": "tools",
    }
    template = load_tokenizer(checkpoint).chat_template
    assert template is not None
    message = {"role": "user", "content": "x"}
    assert template.render([message]) == "<|start|>x"
    assert template.render([message], tools=[{"name": "f"}]) == "tools"
    checkpoint.metadata["tokenizer.chat_template"] = 7
    with pytest.raises(CheckpointError, match="not a text"):
        load_tokenizer(checkpoint)


def test_a_vocabulary_without_types_has_only_text() -> None:
    assert names("<word>", token_type=None) == ["<", "w", "or", "d", ">"]


def test_qwen_composes_unicode_first() -> None:
    assert names("e\u0301", pre="qwen2") == names("é", pre="gpt-2")
    assert names("e\u0301", pre="gpt-2") != names("é", pre="gpt-2")


def test_surrogates_are_joined_or_replaced() -> None:
    tokenizer = load_tokenizer(gguf_checkpoint())
    assert tokenizer.decode(tokenizer.encode("a\ud83d\ude00b\udfff")) == "a😀b\ufffd"


def test_threads_may_share_a_tokenizer() -> None:
    tokenizer = load_tokenizer(gguf_checkpoint())
    texts = [f"hello world {number} ≠ <|turn|>" for number in range(50)]
    expected = [(tokenizer.encode(text), text.replace("<|turn|>", "")) for text in texts]
    wrong: list[str] = []

    def work() -> None:
        for text, (ids, shown) in zip(texts, expected, strict=True):
            if tokenizer.encode(text) != ids or tokenizer.decode(ids) != shown:
                wrong.append(text)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model": None}, "no tokenizer"),
        ({"model": "rwkv"}, "'rwkv'"),
        ({"model": 3}, "kind 3"),
        ({"pre": "from-the-future"}, "'from-the-future'"),
        ({"pre": 3}, "pre-tokenizer 3"),
        ({"tokens": None}, "empty vocabulary"),
        ({"tokens": []}, "empty vocabulary"),
        ({"tokens": "abc"}, "not an array of texts"),
        ({"tokens": [1, 2]}, "not an array of texts"),
        ({"merges": None}, "no merges"),
        ({"merges": ["ab"]}, "don't join two"),
        ({"merges": ["a b c"]}, "don't join two"),
        ({"merges": ["x yy"]}, "don't fit"),
        ({"token_type": [1, 2]}, "token_type"),
        ({"token_type": 5}, "token_type"),
        ({"bos_token_id": 100000}, "bos_token_id"),
        ({"eos_token_id": -1}, "eos_token_id"),
        ({"eot_token_id": True}, "eot_token_id"),
        ({"add_bos_token": 1}, "neither true nor false"),
        ({"precompiled_charsmap": 5}, "charsmap"),
    ],
    ids=str,
)
def test_what_is_malformed_is_named(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(gguf_checkpoint(**overrides))
