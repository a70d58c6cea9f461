"""A tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

import gc
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    processors,
)

from tokenmill.errors import CheckpointError
from tokenmill.tokenizer.backend import Backend, LibraryBackend
from tokenmill.tokenizer.decoding import (
    SPACE_MARK,
    Decoding,
    byte_level_decoding,
    sentencepiece_decoding,
)
from tokenmill.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from tokenmill.tokenizer.sentencepiece_bpe import SentencePieceBPE
from tokenmill.tokenizer.vocabulary import TokenType, Vocabulary, read_vocabulary, string_list

END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Keys of tokens that end an answer."""

KEPT_SPACE_AFTER = ("<unk>", "<s>", "<|endoftext|>")
"""Marks of Phi-3 after which white space counts; after its others it is dropped."""


def build(metadata: Mapping[str, Any]) -> tuple[Backend, Decoding, Vocabulary]:
    """The tokenizer that ``tokenizer.ggml.*`` describes. Raises CheckpointError."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level_bpe(metadata)
    if kind == "llama":
        return _sentencepiece_bpe(metadata)
    if kind == "t5":
        return _unigram(metadata)
    if kind is None:
        raise CheckpointError(
            "the GGUF file has no tokenizer (tokenizer.ggml.model); convert the model again, with its "
            "tokenizer files beside it"
        )
    raise CheckpointError(
        f"the GGUF file has a tokenizer of the kind {reprlib.repr(kind)}, which is not supported; "
        "gpt2, llama and t5 are. Use the model's directory with its tokenizer.json instead"
    )


def _byte_level_bpe(metadata: Mapping[str, Any]) -> tuple[Backend, Decoding, Vocabulary]:
    name = metadata.get("tokenizer.ggml.pre", "default")
    rules = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if rules is None:
        raise CheckpointError(
            f"the GGUF file asks for the pre-tokenizer {reprlib.repr(name)}, which is not known here; "
            "use the model's directory with its tokenizer.json instead, or a newer tokenmill"
        )
    vocabulary = read_vocabulary(metadata, add_bos=rules.add_bos, add_eos=False)
    merges = string_list(metadata, "merges")
    if not merges:
        raise CheckpointError(
            "the GGUF file has no merges (tokenizer.ggml.merges), which byte-level BPE needs; "
            "convert the model again"
        )
    tokens = vocabulary.tokens
    # Cut in one go: as fast as it gets, and a merge of more or fewer than two parts shows in the count.
    parts = " ".join(merges).split(" ")
    if len(parts) != 2 * len(merges):
        raise CheckpointError(
            "the GGUF file has merges (tokenizer.ggml.merges) that don't join two tokens; "
            "convert the model again"
        )
    with _no_collection():
        try:
            model = models.BPE(
                dict(zip(tokens, range(len(tokens)), strict=True)),
                list(zip(parts[::2], parts[1::2], strict=True)),
                ignore_merges=rules.ignore_merges,
            )
        except Exception as error:
            raise CheckpointError(
                f"the merges of the GGUF file don't fit its vocabulary ({error}); "
                "convert the model again"
            ) from error
    library = Tokenizer(model)
    if rules.nfc:
        library.normalizer = normalizers.NFC()
    library.pre_tokenizer = rules.build()
    library.decoder = decoders.ByteLevel()
    _add_tokens(library, vocabulary)
    return LibraryBackend(library), byte_level_decoding(), vocabulary


def _sentencepiece_bpe(metadata: Mapping[str, Any]) -> tuple[Backend, Decoding, Vocabulary]:
    vocabulary = read_vocabulary(metadata, add_bos=True, add_eos=False)
    name = str(metadata.get("general.name", "")).lower()
    strips_right: frozenset[int] = frozenset()
    if "phi3" in "".join(char for char in name if char.isalnum()):
        kept = {vocabulary.tokens.index(t) for t in KEPT_SPACE_AFTER if t in vocabulary.tokens}
        strips_right = frozenset(vocabulary.ids_of(TokenType.CONTROL, TokenType.USER_DEFINED)) - kept
    backend = SentencePieceBPE(vocabulary, strips_right=strips_right)
    return (
        backend,
        sentencepiece_decoding(strip_spaces=1 if vocabulary.add_space_prefix else 0),
        vocabulary,
    )


def _unigram(metadata: Mapping[str, Any]) -> tuple[Backend, Decoding, Vocabulary]:
    vocabulary = read_vocabulary(metadata, add_bos=False, add_eos=True)
    return (*build_unigram(vocabulary), vocabulary)


def build_unigram(vocabulary: Vocabulary) -> tuple[Backend, Decoding]:
    """A unigram model (Kudo, 2018) over a vocabulary with scores. Raises CheckpointError."""
    if len(vocabulary.scores) != len(vocabulary.tokens):
        raise CheckpointError(
            "the vocabulary has no scores (tokenizer.ggml.scores), which a unigram tokenizer needs; "
            "convert the model again"
        )
    try:
        model = models.Unigram(
            list(zip(vocabulary.tokens, vocabulary.scores, strict=True)),
            vocabulary.special_ids.get("unk_token"),
            bool(vocabulary.ids_of(TokenType.BYTE)),
        )
        library = Tokenizer(model)
        steps: list[Any] = []
        if vocabulary.charsmap:
            steps.append(normalizers.Precompiled(vocabulary.charsmap))
    except Exception as error:
        raise CheckpointError(
            f"the unigram vocabulary is malformed ({error}); convert the model again"
        ) from error
    if vocabulary.remove_extra_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    # Not the library's Metaspace, which puts no space before a text that begins with one.
    if vocabulary.add_space_prefix:
        steps.append(normalizers.Prepend(SPACE_MARK))
    library.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE_MARK)])
    _add_tokens(library, vocabulary)
    decoding = sentencepiece_decoding(strip_spaces=1 if vocabulary.add_space_prefix else 0)
    return LibraryBackend(library), decoding


def _add_tokens(library: Tokenizer, vocabulary: Vocabulary) -> None:
    """Make the library recognise marks and whole words in a text, and begin and end texts."""
    tokens = vocabulary.tokens
    marks = [
        AddedToken(tokens[index], special=True, normalized=False)
        for index in vocabulary.ids_of(TokenType.UNKNOWN, TokenType.CONTROL)
    ]
    words = [
        AddedToken(tokens[index], special=False, normalized=False)
        for index in vocabulary.ids_of(TokenType.USER_DEFINED)
    ]
    library.add_special_tokens(marks)
    library.add_tokens(words)
    prefix, suffix = vocabulary.prefix_and_suffix()
    if prefix or suffix:
        pieces: list[int | str] = [*prefix, "$A", *suffix]
        library.post_processor = processors.TemplateProcessing(
            single=[p if isinstance(p, str) else tokens[p] for p in pieces],
            special_tokens=[(tokens[p], p) for p in dict.fromkeys((*prefix, *suffix))],
        )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hundreds of thousands of new pairs would set off the cyclic garbage collector again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
