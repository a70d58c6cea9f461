"""The vocabulary that a GGUF file or a SentencePiece model carries, checked."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

from tokenmill.errors import CheckpointError


class TokenType(IntEnum):
    """What a token is; GGUF and SentencePiece use the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_TOKEN_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
    "mask_token": "mask_token_id",
}
"""Names that chat templates use, and the keys (spelt as in the format) that hold the ids."""


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, and how text is prepared for them.

    types: TokenType of each token. scores: log-probabilities, or the order of merges; may be empty.
    special_ids: ids by name ("bos_token", "eos_token", "unk_token", ...).
    add_bos, add_eos: whether an encoded text begins, ends with that token.
    add_space_prefix: whether a text is encoded as if a space stood before it.
    remove_extra_spaces: whether runs of spaces count as one.
    charsmap: SentencePiece's compiled normalisation rules; empty for none.
    """

    tokens: list[str]
    types: list[int]
    scores: list[float] = field(default_factory=list)
    special_ids: Mapping[str, int] = field(default_factory=dict)
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = True
    remove_extra_spaces: bool = False
    charsmap: bytes = b""

    def ids_of(self, *types: TokenType) -> list[int]:
        """Ids of all tokens of these types (NORMAL excepted), in order."""
        return sorted(index for t in types for index in self._ids_by_type.get(t, ()))

    @cached_property
    def _ids_by_type(self) -> dict[int, list[int]]:
        """Ids by type, all but the normal ones, in one pass over what may be 262,144 tokens."""
        normal = int(TokenType.NORMAL)
        ids: dict[int, list[int]] = {}
        for index in [index for index, kind in enumerate(self.types) if kind != normal]:
            ids.setdefault(self.types[index], []).append(index)
        return ids

    def prefix_and_suffix(self) -> tuple[list[int], list[int]]:
        """Ids that stand before and after an encoded text."""
        bos, eos = self.special_ids.get("bos_token"), self.special_ids.get("eos_token")
        return (
            [bos] if self.add_bos and bos is not None else [],
            [eos] if self.add_eos and eos is not None else [],
        )


def read_vocabulary(metadata: Mapping[str, Any], *, add_bos: bool, add_eos: bool) -> Vocabulary:
    """The vocabulary in GGUF metadata (keys ``tokenizer.ggml.*``).

    add_bos, add_eos: the rule where the file is silent. Raises CheckpointError if parts are missing or
    contradict each other.
    """
    tokens = string_list(metadata, "tokens")
    if not tokens:
        raise CheckpointError(
            "the GGUF file has an empty vocabulary (tokenizer.ggml.tokens); convert the model again"
        )
    types = _number_list(metadata, "token_type", len(tokens)) or [int(TokenType.NORMAL)] * len(tokens)
    scores = _number_list(metadata, "scores", len(tokens))
    if any(map(math.isnan, scores)):
        raise CheckpointError("the GGUF file has scores of tokens that are not numbers (NaN)")
    if "" in tokens:
        # An empty token could never be told from nothing.
        tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    return Vocabulary(
        tokens=tokens,
        types=types,
        scores=scores,
        special_ids={
            name: token
            for name, key in SPECIAL_TOKEN_KEYS.items()
            if (token := token_id(metadata, key, len(tokens))) is not None
        },
        add_bos=_flag(metadata, "add_bos_token", add_bos),
        add_eos=_flag(metadata, "add_eos_token", add_eos),
        add_space_prefix=_flag(metadata, "add_space_prefix", True),
        remove_extra_spaces=_flag(metadata, "remove_extra_whitespaces", False),
        charsmap=_charsmap(metadata),
    )


def special_ids_of(vocabulary: Vocabulary) -> frozenset[int]:
    """Tokens that are marks rather than text."""
    marks = vocabulary.ids_of(TokenType.UNKNOWN, TokenType.CONTROL)
    return frozenset(marks) | frozenset(vocabulary.special_ids.values())


def string_list(metadata: Mapping[str, Any], key: str) -> list[str]:
    """The array of texts ``tokenizer.ggml.<key>``; empty if there is none."""
    value = metadata.get(f"tokenizer.ggml.{key}", ())
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise CheckpointError(f"tokenizer.ggml.{key} of the GGUF file is not an array of texts")
    strings = list(value)
    if not set(map(type, strings)) <= {str}:
        raise CheckpointError(f"tokenizer.ggml.{key} of the GGUF file is not an array of texts")
    return strings


def token_id(metadata: Mapping[str, Any], key: str, size: int) -> int | None:
    """The token id ``tokenizer.ggml.<key>``, or None. Raises CheckpointError if it names no token."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
        raise CheckpointError(
            f"tokenizer.ggml.{key} of the GGUF file is {reprlib.repr(value)}, "
            f"but its vocabulary has the tokens 0 to {size - 1}"
        )
    return value


def _number_list(metadata: Mapping[str, Any], key: str, size: int) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return []
    if not isinstance(value, list) or len(value) != size or isinstance(value[0], str):
        raise CheckpointError(
            f"tokenizer.ggml.{key} of the GGUF file does not have one number for each of {size} tokens"
        )
    return value


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool):
        raise CheckpointError(f"tokenizer.ggml.{key} of the GGUF file is neither true nor false")
    return value


def _charsmap(metadata: Mapping[str, Any]) -> bytes:
    value = metadata.get("tokenizer.ggml.precompiled_charsmap", [])
    try:
        return bytes(v & 0xFF for v in value)
    except TypeError:
        raise CheckpointError(
            "tokenizer.ggml.precompiled_charsmap of the GGUF file is not an array of bytes"
        ) from None
