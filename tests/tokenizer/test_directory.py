"""Directories: the ids and texts of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.golden.tokenizer_texts import TEXTS
from tests.tokenizer.checkpoints import (
    FakeCheckpoint,
    byte_level_library,
    metaspace_library,
    sentencepiece_library,
)
from tokenmill.errors import CheckpointError
from tokenmill.tokenizer import Tokenizer, load_tokenizer

LIBRARIES = {
    "byte-level": byte_level_library,
    "sentencepiece": sentencepiece_library,
    "metaspace": metaspace_library,
}


def directory(
    path: Path, library: str, settings: dict[str, Any] | None = None, **files: str
) -> FakeCheckpoint:
    (path / "tokenizer.json").write_text(library)
    if settings is not None:
        document = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
        (path / "tokenizer_config.json").write_text(json.dumps(document))
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return FakeCheckpoint(path, "safetensors")


def both(checkpoint: FakeCheckpoint) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    return load_tokenizer(checkpoint), AutoTokenizer.from_pretrained(checkpoint.path)


@pytest.mark.parametrize("kind", LIBRARIES)
def test_ids_and_texts_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    settings = {"eos_token": "</s>"} | ({} if kind == "byte-level" else {"unk_token": "<unk>"})
    ours, theirs = both(directory(tmp_path, LIBRARIES[kind](), settings))
    assert ours.vocab_size == len(theirs)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special_tokens=skip) == expected
    assert ours.encode_batch(TEXTS[:5]) == [ours.encode(text) for text in TEXTS[:5]]


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": False},
        {"add_eos_token": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("in_file", [True, False], ids=["post-processor", "none"])
def test_bos_and_eos_are_added_as_transformers_does(
    tmp_path: Path, flags: dict[str, Any], in_file: bool
) -> None:
    library = json.loads(byte_level_library())
    if in_file:
        library["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        }
    settings = {"bos_token": "<s>", "eos_token": "</s>", **flags}
    ours, theirs = both(directory(tmp_path, json.dumps(library), settings))
    for text in ("", "hello", "<s>hello"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(
            text, add_special_tokens=False
        )


def test_tokens_that_only_the_settings_know(tmp_path: Path) -> None:
    size = load_tokenizer(directory(tmp_path, byte_level_library())).vocab_size
    settings = {
        "eos_token": {"content": "<|new|>", "__type": "AddedToken"},
        "added_tokens_decoder": {
            str(size): {"content": "<|new|>", "special": True},
            str(size + 1): {"content": "plain", "special": False},
        },
    }
    ours = load_tokenizer(directory(tmp_path, byte_level_library(), settings))
    assert ours.encode("a<|new|>plain")[1:] == [size, size + 1]
    assert ours.eos_token_ids == {size}
    assert ours.is_special(size)
    assert not ours.is_special(size + 1)
    settings["added_tokens_decoder"] = {"9999": {"content": "<|gap|>", "special": True}}
    with pytest.raises(CheckpointError, match="9999"):
        load_tokenizer(directory(tmp_path, byte_level_library(), settings))


def test_ends_of_an_answer_come_from_both_configurations(tmp_path: Path) -> None:
    checkpoint = directory(tmp_path, byte_level_library(), {"eos_token": "</s>"})
    checkpoint.generation_config = {"eos_token_id": [3, 5]}
    checkpoint.config = {"eos_token_id": 9}
    assert load_tokenizer(checkpoint).eos_token_ids == {1, 3, 5}
    checkpoint.generation_config = {}
    assert load_tokenizer(checkpoint).eos_token_ids == {1, 9}
    checkpoint.config = {"eos_token_id": None}
    assert load_tokenizer(checkpoint).eos_token_ids == {1}


def test_special_tokens_are_known_by_name_and_by_id(tmp_path: Path) -> None:
    settings = {"bos_token": "<s>", "additional_special_tokens": ["<word>"], "pad_token": None}
    ours = load_tokenizer(directory(tmp_path, byte_level_library(), settings))
    assert ours.special_tokens == {"bos_token": "<s>"}
    assert ours.bos_token_id == ours.token_to_id("<s>") == 0
    assert ours.is_special(ours.token_to_id("<word>") or 0)
    assert ours.id_to_token(2) == "<|im_start|>"
    assert ours.id_to_token(1 << 20) is ours.id_to_token(-1) is ours.token_to_id("none") is None
    assert ours.decode([1 << 20, -1, 1 << 40]) == ""


@pytest.mark.parametrize(
    ("settings", "files", "expected"),
    [
        ({}, {}, None),
        ({"chat_template": "A"}, {}, {"default": "A"}),
        ({"chat_template": "A"}, {"chat_template__jinja": "B"}, {"default": "B"}),
        ({}, {"chat_template__json": '{"chat_template": "C"}'}, {"default": "C"}),
        (
            {
                "chat_template": [
                    {"name": "default", "template": "D"},
                    {"name": "tool_use", "template": "T"},
                ]
            },
            {},
            {"default": "D", "tool_use": "T"},
        ),
    ],
)
def test_chat_templates_are_found(
    tmp_path: Path, settings: dict[str, Any], files: dict[str, str], expected: dict[str, str] | None
) -> None:
    template = load_tokenizer(
        directory(tmp_path, byte_level_library(), settings, **files)
    ).chat_template
    assert (None if template is None else template.sources) == expected


def test_further_chat_templates_have_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("R")
    template = load_tokenizer(
        directory(tmp_path, byte_level_library(), chat_template__jinja="A")
    ).chat_template
    assert template is not None
    assert template.sources == {"default": "A", "rag": "R"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", "{", "not a tokenizer"),
        ("tokenizer.json", "{}", "not a tokenizer"),
        ("tokenizer_config.json", "[]", "not a JSON object"),
        ("tokenizer_config.json", "{", "not JSON"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "x"}]}', "no text"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": "y"}}', "malformed"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    checkpoint = directory(tmp_path, byte_level_library())
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(checkpoint)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    checkpoint = directory(tmp_path, byte_level_library())
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja"):
        load_tokenizer(checkpoint)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"},
        {"type": "Strip", "content": "x", "start": 1, "stop": 0},
    ],
    ids=str,
)
def test_decoders_that_need_the_whole_text_are_refused(tmp_path: Path, decoder: Any) -> None:
    library = json.loads(byte_level_library()) | {"decoder": decoder}
    with pytest.raises(CheckpointError, match="not supported"):
        load_tokenizer(directory(tmp_path, json.dumps(library)))


def test_a_directory_without_a_tokenizer_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"AutoTokenizer\.from_pretrained"):
        load_tokenizer(FakeCheckpoint(tmp_path, "safetensors"))


def test_truncation_and_padding_of_the_file_are_not_followed(tmp_path: Path) -> None:
    library = json.loads(byte_level_library())
    library["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    ours = load_tokenizer(directory(tmp_path, json.dumps(library)))
    assert ours.decode(ours.encode("a long text")) == "a long text"
