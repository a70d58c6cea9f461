"""From a token's name in the vocabulary to the bytes that it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.errors import CheckpointError

SPACE_MARK = "▁"
"""What SentencePiece writes for a space (U+2581)."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def byte_level_alphabet() -> dict[str, int]:
    """The byte that each character of GPT-2's byte-level alphabet stands for.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, are written as the
    characters from U+0100 on (Radford et al., 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


@dataclass(frozen=True)
class Decoding:
    """How token names become text: bytes, one after another, read as UTF-8.

    to_bytes: a name's bytes. first_to_bytes: the same for the first token of a text, if it differs.
    strip_spaces: how many spaces at the very start of a text are dropped.
    """

    to_bytes: Callable[[str], bytes]
    first_to_bytes: Callable[[str], bytes] | None = None
    strip_spaces: int = 0


def byte_level_decoding() -> Decoding:
    """Names written in the byte-level alphabet. Any other name stands for itself."""
    alphabet = byte_level_alphabet()

    def to_bytes(name: str) -> bytes:
        try:
            return bytes([alphabet[char] for char in name])
        except KeyError:
            return name.encode()

    return Decoding(to_bytes)


def sentencepiece_decoding(*, strip_spaces: int) -> Decoding:
    """Names with ▁ for a space, and ``<0x0A>`` for single bytes."""

    def to_bytes(name: str) -> bytes:
        byte = _BYTE_TOKEN.match(name)
        if byte:
            return bytes([int(byte[1], 16)])
        return name.replace(SPACE_MARK, " ").encode()

    return Decoding(to_bytes, strip_spaces=strip_spaces)


def decoding_of(decoder: Any) -> Decoding:
    """The decoding that the "decoder" of a tokenizer.json describes.

    decoder: the library's decoder object, or None. Raises CheckpointError for a kind whose text can't
    be put together token by token.
    """
    state: dict[str, Any] = json.loads(decoder.__getstate__()) if decoder is not None else {}
    steps = state.get("decoders", []) if state.get("type") == "Sequence" else [state]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return byte_level_decoding()
    if kinds == ["Metaspace"]:
        return _metaspace_decoding(steps[0])
    known = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
    if not kinds or not set(kinds) <= known:
        names = ", ".join(str(kind) for kind in kinds)
        raise CheckpointError(
            f"the decoder {names} of tokenizer.json is not supported; ByteLevel, Metaspace and "
            "SentencePiece's sequence of Replace, ByteFallback, Fuse and Strip are"
        )
    return _sequence_decoding(steps)


def _metaspace_decoding(step: dict[str, Any]) -> Decoding:
    mark: str = step.get("replacement", SPACE_MARK)
    decoding = Decoding(lambda name: name.replace(mark, " ").encode())
    if step.get("prepend_scheme", "always") == "never":
        return decoding
    return replace(decoding, first_to_bytes=lambda name: name.replace(mark, "").encode())


def _sequence_decoding(steps: list[dict[str, Any]]) -> Decoding:
    replacements: list[tuple[str, str]] = []
    bytes_fall_back = False
    strip_spaces = 0
    metaspace: Decoding | None = None
    for step in steps:
        if step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            if not pattern:
                raise CheckpointError(
                    "a decoder of tokenizer.json replaces a regular expression, which is not supported"
                )
            replacements.append((pattern, step["content"]))
        elif step["type"] == "ByteFallback":
            bytes_fall_back = True
        elif step["type"] == "Metaspace":
            metaspace = _metaspace_decoding(step)
        elif step["type"] == "Strip":
            if step["content"] != " " or step["stop"]:
                raise CheckpointError(
                    "a decoder of tokenizer.json strips something other than leading spaces, "
                    "which is not supported"
                )
            strip_spaces = step["start"]

    def with_steps(plain: Callable[[str], bytes]) -> Callable[[str], bytes]:
        def to_bytes(name: str) -> bytes:
            byte = _BYTE_TOKEN.match(name) if bytes_fall_back else None
            if byte:
                return bytes([int(byte[1], 16)])
            for pattern, content in replacements:
                name = name.replace(pattern, content)
            return plain(name)

        return to_bytes

    if metaspace is None:
        return Decoding(with_steps(str.encode), strip_spaces=strip_spaces)
    first = metaspace.first_to_bytes
    return Decoding(
        with_steps(metaspace.to_bytes),
        with_steps(first) if first is not None else None,
        strip_spaces=strip_spaces,
    )
