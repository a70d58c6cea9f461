"""Text as it comes in is the text as a whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from tests.tokenizer.checkpoints import (
    byte_level_library,
    gguf_checkpoint,
    metaspace_library,
    sentencepiece_library,
)
from tokenmill.tokenizer import IncrementalDetokenizer, Tokenizer, load_tokenizer
from tokenmill.tokenizer.backend import LibraryBackend
from tokenmill.tokenizer.decoding import decoding_of

MAKERS: dict[str, Callable[[], str]] = {
    "byte-level": byte_level_library,
    "sentencepiece": sentencepiece_library,
    "metaspace": metaspace_library,
}


@cache
def library_of(kind: str) -> Library:
    return Library.from_str(MAKERS[kind]())


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    if kind == "gguf":
        return load_tokenizer(gguf_checkpoint())
    library = library_of(kind)
    marks = {i for i, token in library.get_added_tokens_decoder().items() if token.special}
    return Tokenizer(
        LibraryBackend(library),
        decoding_of(library.decoder),
        bos_token_id=None,
        eos_token_ids=frozenset(),
        special_ids=frozenset(marks),
        special_tokens={},
        chat_template=None,
    )


@st.composite
def divided(draw: st.DrawFn) -> tuple[str, list[list[int]]]:
    kind = draw(st.sampled_from([*MAKERS, "gguf"]))
    # Beyond the vocabulary as well: models have more rows than their tokenizers have tokens.
    ids = st.integers(0, tokenizer_of(kind).vocab_size + 3)
    return kind, draw(st.lists(st.lists(ids, max_size=5), max_size=8))


@settings(deadline=None)
@given(divided(), st.booleans())
def test_text_as_it_comes_in_is_the_whole_text(case: tuple[str, list[list[int]]], skip: bool) -> None:
    kind, parts = case
    tokenizer = tokenizer_of(kind)
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    text = "".join(map(detokenizer.push, parts)) + detokenizer.finish()
    assert text == tokenizer.decode([token for part in parts for token in part], skip)


@settings(deadline=None)
@given(divided(), st.booleans())
def test_whole_texts_are_those_of_the_library(case: tuple[str, list[list[int]]], skip: bool) -> None:
    kind, parts = case
    if kind == "gguf":
        return
    ids = [token for part in parts for token in part]
    expected = library_of(kind).decode(ids, skip_special_tokens=skip)
    text = tokenizer_of(kind).decode(ids, skip)
    if kind == "sentencepiece" and "\ufffd" in text + expected:
        # The library gives a whole run of byte tokens up if any of it is not UTF-8, so it could not
        # say anything before the run ends. We replace only what can't be read.
        return
    assert text == expected


@pytest.mark.parametrize("kind", [*MAKERS, "gguf"])
@settings(deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_is_encoded_and_shown_again(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text, add_special_tokens=False)
    if kind in ("byte-level", "gguf"):
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    for token in ids:
        assert "\ufffd" not in detokenizer.push([token]) or "\ufffd" in text


def test_half_a_character_is_held_back() -> None:
    tokenizer = tokenizer_of("gguf")
    ids = tokenizer.encode("a€b")
    assert len(ids) == 5
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.push([token]) for token in ids] == ["a", "", "", "€", "b"]
    assert detokenizer.finish() == ""


def test_a_character_that_never_becomes_whole_is_replaced() -> None:
    tokenizer = tokenizer_of("gguf")
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert detokenizer.push(tokenizer.encode("a€")[:-1]) == "a"
    assert detokenizer.finish() == "\ufffd"


def test_special_tokens_are_left_out_or_shown() -> None:
    tokenizer = tokenizer_of("gguf")
    ids = tokenizer.encode("a<|turn|><|end|><word>b")
    assert tokenizer.decode(ids) == "a<word>b"
    shown = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    assert "".join(shown.push([token]) for token in ids) == "a<|turn|><|end|><word>b"
    end = tokenizer.token_to_id("<|end|>")
    assert end is not None
    assert IncrementalDetokenizer(tokenizer, shown_token_ids=[end]).push(ids) == "a<|end|><word>b"


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
def test_the_space_of_the_first_word_depends_on_what_comes_before(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    prompt = tokenizer.encode("the quick brown", add_special_tokens=False)
    ids = tokenizer.encode("the quick brown fox", add_special_tokens=False)[len(prompt) :]
    assert IncrementalDetokenizer(tokenizer).push(ids) == "fox"
    assert IncrementalDetokenizer(tokenizer, prompt_token_ids=prompt).push(ids) == " fox"
    only_marks = IncrementalDetokenizer(tokenizer, prompt_token_ids=[1])
    assert only_marks.push(ids) == "fox"


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
def test_a_character_that_began_in_the_prompt_is_completed(cut: int) -> None:
    tokenizer = tokenizer_of("gguf")
    ids = tokenizer.encode("é🙂")
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_token_ids=ids[:cut])
    text = detokenizer.push(ids[cut:]) + detokenizer.finish()
    assert text == ("é🙂" if cut == 1 else "🙂")
