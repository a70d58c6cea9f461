"""Writes tokenizer_<model>.json: token ids of llama-cpp-python for hostile texts.

    python make_tokenizer_golden.py MODEL.gguf NAME [--nfc]
    python make_tokenizer_golden.py --families PRE...

Run with a Python that has llama-cpp-python. Only the vocabulary of the file is loaded. Each text is
tokenised with special tokens recognised (``parse_special``), as models see chats, with no BOS or EOS.
--nfc: the model's own tokenizer composes Unicode first (Qwen's does) and llama.cpp doesn't, so
texts are composed before they are handed to it.
--families: writes tokenizer_families.json instead: what each of the named pre-tokenizers makes of a
vocabulary in which any two neighbouring bytes of the texts would be joined, if they were in one word.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
import tempfile
import unicodedata
from pathlib import Path

import llama_cpp
from tokenizer_texts import FAMILY_TEXTS, TEXTS


def write(name: str, made_by: str, cases: list[dict[str, object]]) -> None:
    """Write one case to a line."""
    head = json.dumps({"made_by": made_by, "llama_cpp_python": llama_cpp.__version__})[:-1]
    lines = ",\n".join(json.dumps(case) for case in cases)
    Path(__file__).with_name(f"tokenizer_{name}.json").write_text(f'{head}, "cases": [\n{lines}\n]}}\n')


def tokenize(model: llama_cpp.Llama, text: str) -> list[int]:
    """Ids without BOS and EOS."""
    ids: list[int] = model.tokenize(text.encode(), add_bos=False, special=True)
    return ids


def write_model(path: str, name: str, *, nfc: bool) -> None:
    """Tokenise every text with the file's own vocabulary."""
    model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    cases: list[dict[str, object]] = [
        {"text": text, "ids": tokenize(model, unicodedata.normalize("NFC", text) if nfc else text)}
        for text in TEXTS
    ]
    option = " --nfc" if nfc else ""
    write(name, f"make_tokenizer_golden.py {Path(path).name} {name}{option}", cases)


def pair_vocabulary() -> tuple[list[str], list[str]]:
    """Byte-level tokens and merges: all bytes, and all neighbours in the family texts."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}
    written = ["".join(alphabet[byte] for byte in text.encode()) for text in FAMILY_TEXTS]
    pairs = dict.fromkeys(pair for text in written for pair in itertools.pairwise(text))
    return [*alphabet.values(), *map("".join, pairs)], list(map(" ".join, pairs))


def gguf_vocabulary(tokens: list[str], merges: list[str], pre_tokenizer: str) -> bytes:
    """A GGUF file without tensors."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def strings(items: list[str]) -> bytes:
        return struct.pack("<IIQ", 9, 8, len(items)) + b"".join(map(string, items))

    entries = {
        "general.architecture": struct.pack("<I", 8) + string("llama"),
        "tokenizer.ggml.model": struct.pack("<I", 8) + string("gpt2"),
        "tokenizer.ggml.pre": struct.pack("<I", 8) + string(pre_tokenizer),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.merges": strings(merges),
    }
    body = b"".join(string(key) + value for key, value in entries.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + body


def write_families(names: list[str]) -> None:
    """Tokenise the family texts as each pre-tokenizer would; those that agree share an entry."""
    tokens, merges = pair_vocabulary()
    texts = [start + text for text in FAMILY_TEXTS for start in ("", text[0])]
    found: dict[str, list[str]] = {}
    for name in names:
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(gguf_vocabulary(tokens, merges, name))
            file.flush()
            model = llama_cpp.Llama(file.name, vocab_only=True, verbose=False)
        found.setdefault(json.dumps([tokenize(model, text) for text in texts]), []).append(name)
        model.close()
    cases: list[dict[str, object]] = [
        {"names": same, "ids": json.loads(ids)} for ids, same in found.items()
    ]
    vocabulary: dict[str, object] = {"tokens": tokens, "merges": merges, "texts": texts}
    write("families", "make_tokenizer_golden.py --families NAMES", [vocabulary, *cases])


def main(*arguments: str) -> None:
    """See the module."""
    if arguments[0] == "--families":
        write_families(list(arguments[1:]))
    else:
        write_model(arguments[0], arguments[1], nfc="--nfc" in arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
