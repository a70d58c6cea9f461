"""A tokenizer from a directory that has SentencePiece's tokenizer.model, but no tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.tokenizer.backend import Backend
from tokenmill.tokenizer.decoding import Decoding, sentencepiece_decoding
from tokenmill.tokenizer.directory_tokenizer import added_tokens_of, special_tokens_of
from tokenmill.tokenizer.gguf_tokenizer import build_unigram
from tokenmill.tokenizer.sentencepiece_bpe import SentencePieceBPE
from tokenmill.tokenizer.sentencepiece_model import read_sentencepiece_model
from tokenmill.tokenizer.vocabulary import TokenType, Vocabulary


def build(path: Path, settings: Mapping[str, Any]) -> tuple[Backend, Decoding, Vocabulary]:
    """The tokenizer of a directory. Raises CheckpointError.

    Where the settings are silent, BPE texts begin with BOS (Llama) and unigram texts end with EOS (T5).
    """
    is_bpe, vocabulary = read_sentencepiece_model(path / "tokenizer.model")
    vocabulary = _with_added_tokens(vocabulary, settings)
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    named = {name: ids[text] for name, text in special_tokens_of(settings).items() if text in ids}
    vocabulary = replace(
        vocabulary,
        special_ids={**vocabulary.special_ids, **named},
        add_bos=bool(settings.get("add_bos_token", is_bpe)),
        add_eos=bool(settings.get("add_eos_token", not is_bpe)),
    )
    if not is_bpe:
        return (*build_unigram(vocabulary), vocabulary)
    decoding = sentencepiece_decoding(strip_spaces=1 if vocabulary.add_space_prefix else 0)
    return SentencePieceBPE(vocabulary), decoding, vocabulary


def _with_added_tokens(vocabulary: Vocabulary, settings: Mapping[str, Any]) -> Vocabulary:
    """Tokens that stand behind those of the model, and those of it that count as marks."""
    tokens, types, scores = [*vocabulary.tokens], [*vocabulary.types], [*vocabulary.scores]
    for index, token in added_tokens_of(settings):
        text = token.content
        kind = int(TokenType.CONTROL if token.special else TokenType.USER_DEFINED)
        if index == len(tokens):
            tokens.append(text)
            types.append(kind)
            scores.append(0.0)
        elif index < len(tokens) and tokens[index] == text:
            if types[index] == TokenType.NORMAL:
                types[index] = kind
        else:
            raise CheckpointError(
                f"the settings of the tokenizer give {text!r} the id {index}, which tokenizer.model "
                "doesn't leave free; download both files again"
            )
    return replace(vocabulary, tokens=tokens, types=types, scores=scores)
