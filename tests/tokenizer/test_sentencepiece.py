"""The ids of the SentencePiece library, from its own model files and from GGUF metadata."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden.tokenizer_texts import TEXTS
from tests.tokenizer.checkpoints import CORPUS, FakeCheckpoint
from tokenmill.errors import CheckpointError
from tokenmill.tokenizer import Tokenizer, load_tokenizer
from tokenmill.tokenizer.sentencepiece_bpe import SentencePieceBPE
from tokenmill.tokenizer.sentencepiece_model import read_sentencepiece_model
from tokenmill.tokenizer.vocabulary import Vocabulary

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "byte_fallback": True,
    },
    "gemma": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["<word>", "▁▁", "▁▁▁▁", "\n", "\n\n", "\t"],
    },
    "across words": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "byte_fallback": True,
        "split_by_whitespace": False,
    },
    "normalising": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc"},
    "unigram": {"model_type": "unigram", "hard_vocab_limit": False},
    "unigram with bytes": {
        "model_type": "unigram",
        "hard_vocab_limit": False,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "byte_fallback": True,
    },
}

PLAIN_TEXTS = [text for text in TEXTS if "<s>" not in text and "<unk>" not in text]
"""SentencePiece doesn't look for its marks in a text, so texts with some would differ on purpose."""


@cache
def trained(variant: str) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in CORPUS if "\0" not in text] * 3),
        model_writer=out,
        vocab_size=700,
        character_coverage=0.98,
        minloglevel=2,
        **VARIANTS[variant],
    )
    return out.getvalue()


@cache
def oracle(variant: str) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=trained(variant))


def directory(path: Path, data: bytes, settings: dict[str, Any] | None = None) -> FakeCheckpoint:
    (path / "tokenizer.model").write_bytes(data)
    (path / "tokenizer_config.json").write_text(json.dumps(settings or {}))
    return FakeCheckpoint(path, "safetensors")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    return {
        variant: load_tokenizer(directory(tmp_path_factory.mktemp("model"), trained(variant)))
        for variant in VARIANTS
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_ids_and_texts_are_those_of_sentencepiece(
    tokenizers: dict[str, Tokenizer], variant: str
) -> None:
    ours, theirs = tokenizers[variant], oracle(variant)
    assert ours.vocab_size == theirs.get_piece_size()
    for text in PLAIN_TEXTS:
        expected = theirs.encode(text)
        ids = ours.encode(text, add_special_tokens=False)
        if variant.startswith("unigram") and ids != expected:
            # Cuts of equal probability: the order of adding up decides between them.
            score = {i: theirs.get_score(i) for i in {*ids, *expected}}
            assert sum(score[i] for i in ids) == pytest.approx(sum(score[i] for i in expected))
            continue
        assert ids == expected, text
        if theirs.unk_id() not in ids:
            assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)


@pytest.mark.parametrize("variant", ["llama", "gemma", "across words"])
@settings(deadline=None)
@given(text=st.text(alphabet=st.sampled_from("theo aidn\n\t<>wr1é▁你"), max_size=60))
def test_texts_with_many_merges(tokenizers: dict[str, Tokenizer], variant: str, text: str) -> None:
    ids = tokenizers[variant].encode(text, add_special_tokens=False)
    assert ids == oracle(variant).encode(text)


def test_equal_scores_are_joined_from_the_left() -> None:
    vocabulary = Vocabulary(
        tokens=["<unk>", "a", "b", "aa", "aab", "baa"],
        types=[2, 1, 1, 1, 1, 1],
        scores=[0.0, -9.0, -9.0, -1.0, -1.0, -1.0],
        special_ids={"unk_token": 0},
        add_space_prefix=False,
    )
    backend = SentencePieceBPE(vocabulary)

    def tokens(text: str) -> list[str]:
        return [vocabulary.tokens[i] for i in backend.encode(text, add_special_tokens=False)]

    assert tokens("aaa") == ["aa", "a"]
    assert tokens("aabaa") == ["aab", "aa"]
    assert tokens("azzab") == ["a", "<unk>", "a", "b"]


def spm_metadata(**overrides: Any) -> FakeCheckpoint:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = [*pieces, "▁", "a", "b", "▁a", "<|user|>", "<tag>"]
    values: dict[str, Any] = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + [-3.0, -4.0, -5.0, -1.0, 0.0, 0.0],
        "token_type": [2, 3, 3] + [6] * 256 + [1, 1, 1, 1, 3, 4],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    values |= overrides
    metadata = {f"tokenizer.ggml.{key}": v for key, v in values.items() if v is not None}
    return FakeCheckpoint(metadata=metadata)


def names(text: str, checkpoint: FakeCheckpoint) -> list[str | None]:
    tokenizer = load_tokenizer(checkpoint)
    return [tokenizer.id_to_token(token) for token in tokenizer.encode(text)]


def test_rules_of_gguf_files() -> None:
    assert names("a", spm_metadata()) == ["<s>", "▁a"]
    assert names("a", spm_metadata(add_space_prefix=False)) == ["<s>", "a"]
    assert names("a", spm_metadata(add_bos_token=False, add_eos_token=True)) == ["▁a", "</s>"]
    assert names("", spm_metadata()) == ["<s>"]
    assert names("a<|user|>a<tag>b", spm_metadata())[1:] == [
        "▁a", "<|user|>", "▁a", "<tag>", "▁", "b",
    ]  # fmt: skip
    assert names("é", spm_metadata())[1:] == ["▁", "<0xC3>", "<0xA9>"]
    tokenizer = load_tokenizer(spm_metadata())
    assert tokenizer.decode(tokenizer.encode("a é b")) == "a é b"
    assert tokenizer.token_to_id("<0x41>") == 3 + 0x41
    assert tokenizer.token_to_id("▁a") == tokenizer.encode("a")[1]
    # Names of bytes and marks are not made from their letters.
    assert tokenizer.decode(tokenizer.encode("<0x41>")) == "<0x41>"


def test_white_space_after_the_marks_of_phi3_is_dropped() -> None:
    checkpoint = spm_metadata(add_space_prefix=False)
    assert names("<|user|> \n a", checkpoint)[1:] == ["<|user|>", "▁", "<0x0A>", "▁a"]
    checkpoint.metadata["general.name"] = "Phi 3.5 mini instruct"
    assert names("<|user|> \n a", checkpoint)[1:] == ["<|user|>", "a"]
    assert names("<s> a", checkpoint)[1:] == ["<s>", "▁a"]


def test_unigram_in_gguf_files() -> None:
    checkpoint = spm_metadata(model="t5", add_bos_token=False)
    assert names("a b", checkpoint) == ["▁a", "▁", "b", "</s>"]
    assert names("aé", checkpoint) == ["▁a", "<0xC3>", "<0xA9>", "</s>"]
    tokenizer = load_tokenizer(checkpoint)
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"
    squeezed = spm_metadata(model="t5", remove_extra_whitespaces=True)
    assert names("  a   b ", squeezed) == ["▁a", "▁", "b", "</s>"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"scores": None}, "no scores"),
        ({"scores": [0.0]}, "scores"),
        ({"scores": [float("nan")] * 265}, "NaN"),
        ({"scores": None, "model": "t5"}, "no scores"),
        ({"unknown_token_id": None, "token_type": [1] * 265}, "neither a token for each byte"),
        ({"precompiled_charsmap": [1, 2, 3]}, "normalisation rules"),
        ({"precompiled_charsmap": [1, 2, 3], "model": "t5"}, "unigram vocabulary"),
    ],
    ids=str,
)
def test_what_is_malformed_is_named(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(spm_metadata(**overrides))


def test_settings_of_a_directory(tmp_path: Path) -> None:
    size = oracle("llama").get_piece_size()
    settings = {
        "bos_token": "<s>",
        "eos_token": "<|end|>",
        "chat_template": "{{ bos_token }}{{ eos_token }}",
        "added_tokens_decoder": {
            "1": {"content": "<s>", "special": True},
            str(size): {"content": "<|end|>", "special": True},
            str(size + 1): {"content": "<tag>", "special": False},
        },
    }
    tokenizer = load_tokenizer(directory(tmp_path, trained("llama"), settings))
    assert tokenizer.encode("a<|end|><tag>")[-2:] == [size, size + 1]
    assert tokenizer.encode("a")[0] == tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == {size}
    assert tokenizer.is_special(size)
    assert not tokenizer.is_special(size + 1)
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.render([]) == "<s><|end|>"
    without = load_tokenizer(
        directory(tmp_path, trained("llama"), {"add_bos_token": False, "add_eos_token": True})
    )
    ids = without.encode("a")
    assert (ids[0], ids[-1]) != (1, 1)
    assert ids[-1] == 2
    settings["added_tokens_decoder"] = {str(size + 5): {"content": "x", "special": True}}
    with pytest.raises(CheckpointError, match="doesn't leave free"):
        load_tokenizer(directory(tmp_path, trained("llama"), settings))


@settings(deadline=None)
@given(st.integers(0, 200), st.binary(max_size=8))
def test_damaged_models_give_one_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "damaged.model"
    data = trained("llama")
    file.write_bytes(data[:at] + junk + data[at + 3 : 2000])
    try:
        _, vocabulary = read_sentencepiece_model(file)
    except CheckpointError:
        return
    assert len(vocabulary.tokens) == len(vocabulary.types) == len(vocabulary.scores)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x0a\xff\xff\xff\xff\x7f",
        b"\x0a\x05ab",
        b"\x08\x01",
        b"\x0b",
        b"\x80" * 20,
        b"\x0a\x02\x18",
    ],
    ids=str,
)
def test_what_is_no_model_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CheckpointError, match="not a SentencePiece model"):
        load_tokenizer(directory(tmp_path, data))
