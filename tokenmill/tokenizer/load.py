"""Finds the tokenizer of a checkpoint."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from tokenmill.errors import CheckpointError
from tokenmill.tokenizer import directory_tokenizer, gguf_tokenizer, sentencepiece_directory
from tokenmill.tokenizer.backend import LibraryBackend
from tokenmill.tokenizer.chat_template import ChatTemplate
from tokenmill.tokenizer.decoding import decoding_of
from tokenmill.tokenizer.tokenizer import Tokenizer
from tokenmill.tokenizer.vocabulary import special_ids_of, token_id

TEMPLATE_KEY = "tokenizer.chat_template"


class HasTokenizer(Protocol):
    """What is needed of a checkpoint; ``tokenmill.weights.checkpoint.Checkpoint`` has it."""

    @property
    def path(self) -> Path:
        """The directory or file."""
        ...

    @property
    def kind(self) -> Literal["safetensors", "gguf"]:
        """What it is."""
        ...

    @property
    def config(self) -> dict[str, Any]:
        """config.json."""
        ...

    @property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json."""
        ...

    @property
    def metadata(self) -> dict[str, Any]:
        """GGUF metadata."""
        ...


def load_tokenizer(checkpoint: HasTokenizer) -> Tokenizer:
    """The tokenizer of a model: from its directory's tokenizer.json, or from its GGUF metadata.

    Raises CheckpointError if it is missing, malformed, or of a kind that is not supported.
    """
    if checkpoint.kind == "gguf":
        return _from_gguf(checkpoint)
    return _from_directory(checkpoint)


def _from_gguf(checkpoint: HasTokenizer) -> Tokenizer:
    metadata = checkpoint.metadata
    backend, decoding, vocabulary = gguf_tokenizer.build(metadata)
    size = len(vocabulary.tokens)
    ends = [token_id(metadata, key, size) for key in gguf_tokenizer.END_TOKENS]
    eos_ids = _ids_in(checkpoint.generation_config) | {end for end in ends if end is not None}
    special_tokens = {name: vocabulary.tokens[index] for name, index in vocabulary.special_ids.items()}
    templates: dict[str, str] = {}
    for key, value in metadata.items():
        if key == TEMPLATE_KEY or key.startswith(TEMPLATE_KEY + "."):
            if not isinstance(value, str):
                raise CheckpointError(f"{key} of the GGUF file is not a text but {reprlib.repr(value)}")
            templates[key[len(TEMPLATE_KEY) + 1 :] or "default"] = value
    return Tokenizer(
        backend,
        decoding,
        bos_token_id=vocabulary.special_ids.get("bos_token"),
        eos_token_ids=frozenset(eos_ids),
        special_ids=special_ids_of(vocabulary) | eos_ids,
        special_tokens=special_tokens,
        chat_template=ChatTemplate(templates, special_tokens) if templates else None,
    )


def _from_directory(checkpoint: HasTokenizer) -> Tokenizer:
    path = checkpoint.path
    settings = directory_tokenizer.read_settings(path)
    if not (path / "tokenizer.json").exists() and (path / "tokenizer.model").exists():
        return _from_sentencepiece(checkpoint, settings)
    library = directory_tokenizer.load_library(path, settings)
    special_tokens = directory_tokenizer.special_tokens_of(settings)
    by_name = {name: library.token_to_id(text) for name, text in special_tokens.items()}
    named = {name: index for name, index in by_name.items() if index is not None}
    extra = map(library.token_to_id, directory_tokenizer.extra_special_tokens_of(settings))
    marks = {index for index, token in library.get_added_tokens_decoder().items() if token.special}
    templates = directory_tokenizer.chat_templates_of(path, settings)
    return Tokenizer(
        LibraryBackend(library),
        decoding_of(library.decoder),
        bos_token_id=named.get("bos_token"),
        eos_token_ids=_directory_eos_ids(checkpoint, named),
        special_ids=frozenset(marks) | set(named.values()) | {i for i in extra if i is not None},
        special_tokens=special_tokens,
        chat_template=ChatTemplate(templates, special_tokens) if templates else None,
    )


def _from_sentencepiece(checkpoint: HasTokenizer, settings: Mapping[str, Any]) -> Tokenizer:
    backend, decoding, vocabulary = sentencepiece_directory.build(checkpoint.path, settings)
    named = vocabulary.special_ids
    special_tokens = {name: vocabulary.tokens[index] for name, index in named.items()}
    templates = directory_tokenizer.chat_templates_of(checkpoint.path, settings)
    return Tokenizer(
        backend,
        decoding,
        bos_token_id=named.get("bos_token"),
        eos_token_ids=_directory_eos_ids(checkpoint, named),
        special_ids=special_ids_of(vocabulary),
        special_tokens=special_tokens,
        chat_template=ChatTemplate(templates, special_tokens) if templates else None,
    )


def _directory_eos_ids(checkpoint: HasTokenizer, named: Mapping[str, int]) -> frozenset[int]:
    """Ends of an answer: what the model's configuration says, and the tokenizer's EOS."""
    ids = _ids_in(checkpoint.generation_config) or _ids_in(checkpoint.config)
    return ids | {named["eos_token"]} if "eos_token" in named else ids


def _ids_in(config: Mapping[str, Any]) -> frozenset[int]:
    """What eos_token_id of a configuration names: one token, several, or none."""
    value = config.get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return frozenset(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0)
