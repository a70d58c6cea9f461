"""Reads tokenizer.model, the file of the SentencePiece library.

It is a protocol buffer (sentencepiece_model.proto); the few fields that matter are read here, so that
neither library is needed. A file is taken to be hostile: each length is compared with what is left.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tokenmill.errors import CheckpointError
from tokenmill.tokenizer.vocabulary import TokenType, Vocabulary

MAX_BYTES = 64 << 20

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE = 3
_IDS = {40: "unk_token", 41: "bos_token", 42: "eos_token", 43: "pad_token"}
_DEFAULT_IDS = {"unk_token": 0, "bos_token": 1, "eos_token": 2, "pad_token": -1}
_CHARSMAP, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES = 2, 3, 4
_UNIGRAM, _BPE = 1, 2

Field = tuple[int, int | bytes]
"""A field's number, and its value: a number, or the bytes of a text, message or float."""


def read_sentencepiece_model(file: Path) -> tuple[bool, Vocabulary]:
    """Whether the model is BPE (else unigram), and its vocabulary. Raises CheckpointError."""
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise CheckpointError(f"{file} has {size} bytes; at most {MAX_BYTES} are allowed")
        return _read(file.read_bytes())
    except (OSError, ValueError, struct.error) as error:
        raise CheckpointError(
            f"{file} is not a SentencePiece model ({error}); download it again"
        ) from error


def _read(data: bytes) -> tuple[bool, Vocabulary]:
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    kind, ids = _UNIGRAM, dict(_DEFAULT_IDS)
    charsmap, add_prefix, one_space = b"", True, True
    for number, value in _fields(data):
        if number == _PIECES:
            text, score, piece_type = _piece(_message(value))
            tokens.append(text)
            scores.append(score)
            types.append(piece_type)
        elif number == _TRAINER:
            for inner, inner_value in _fields(_message(value)):
                if inner == _MODEL_TYPE:
                    kind = _number(inner_value)
                elif inner in _IDS:
                    ids[_IDS[inner]] = _number(inner_value)
        elif number == _NORMALIZER:
            for inner, inner_value in _fields(_message(value)):
                if inner == _CHARSMAP:
                    charsmap = _message(inner_value)
                elif inner == _ADD_DUMMY_PREFIX:
                    add_prefix = bool(_number(inner_value))
                elif inner == _REMOVE_EXTRA_WHITESPACES:
                    one_space = bool(_number(inner_value))
    if not tokens:
        raise ValueError("it has no pieces")
    if kind not in (_UNIGRAM, _BPE):
        raise ValueError("it splits text into words or characters, which is not supported")
    special_ids = {name: index for name, index in ids.items() if 0 <= index < len(tokens)}
    return kind == _BPE, Vocabulary(
        tokens=tokens,
        types=types,
        scores=scores,
        special_ids=special_ids,
        add_space_prefix=add_prefix,
        remove_extra_spaces=one_space,
        charsmap=charsmap,
    )


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, piece_type = "", 0.0, int(TokenType.NORMAL)
    for number, value in _fields(data):
        if number == _PIECE_TEXT:
            text = _message(value).decode()
        elif number == _PIECE_SCORE:
            (score,) = struct.unpack("<f", _message(value))
        elif number == _PIECE_TYPE:
            piece_type = _number(value)
    return text, score, piece_type


def _fields(data: bytes) -> Iterator[Field]:
    """The fields of a message, in order."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, at = _varint(data, at)
            # Negative numbers are written as their 64-bit complement.
            yield number, value - (1 << 64) if value >> 63 else value
            continue
        if wire_type == 2:
            size, at = _varint(data, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"wire type {wire_type}")
        if size > len(data) - at:
            raise ValueError("a field runs past the end")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number runs past its end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a number is expected where there is text")
    return value


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("text is expected where there is a number")
    return value
