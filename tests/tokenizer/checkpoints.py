"""Checkpoints with a tokenizer and nothing else, and vocabularies to put into them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.golden.tokenizer_texts import TEXTS
from tokenmill.tokenizer.decoding import byte_level_alphabet

CORPUS = [
    *[text for text in TEXTS if text],
    *["the quick brown fox and the lazy dog said hello to the world again and again"] * 20,
    *["def function(value): return value + 1  # 123 456 7890"] * 10,
]


@dataclass
class FakeCheckpoint:
    """What load_tokenizer reads of a checkpoint."""

    path: Path = Path("model.gguf")
    kind: Literal["safetensors", "gguf"] = "gguf"
    config: dict[str, Any] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


def gguf_checkpoint(**overrides: Any) -> FakeCheckpoint:
    """Byte-level BPE with a few merges. overrides: keys below tokenizer.ggml; None removes one."""
    alphabet = list(byte_level_alphabet())
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "1 2"]
    marks = ["<|end|>", "<|start|>", "<|turn|>", "<word>"]
    tokens = [*alphabet, *(merge.replace(" ", "") for merge in merges), *marks]
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "merges": merges,
        "token_type": [1] * (len(tokens) - 4) + [3, 3, 3, 4],
        "bos_token_id": tokens.index("<|start|>"),
        "eos_token_id": tokens.index("<|end|>"),
    }
    values |= overrides
    metadata = {f"tokenizer.ggml.{key}": v for key, v in values.items() if v is not None}
    return FakeCheckpoint(metadata=metadata)


@cache
def byte_level_library() -> str:
    """tokenizer.json of a small byte-level BPE, trained on CORPUS."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens([AddedToken("<word>", normalized=False)])
    return str(library.to_str())


@cache
def sentencepiece_library() -> str:
    """tokenizer.json of a small BPE in SentencePiece's manner: ▁ for spaces, bytes to fall back on."""
    library = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    library.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        limit_alphabet=60,
    )
    library.train_from_iterator(CORPUS, trainer)
    # Bytes are text, so they must not be special.
    document = json.loads(library.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    return json.dumps(document)


def metaspace_library() -> str:
    """tokenizer.json of a unigram model with Metaspace."""
    library = Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, show_progress=False, special_tokens=["<unk>", "</s>"], unk_token="<unk>"
    )
    library.train_from_iterator(CORPUS, trainer)
    return str(library.to_str())
