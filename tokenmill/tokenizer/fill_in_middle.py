"""Prompts that ask for what stands between two texts, as code models are trained to fill it in.

Such models mark the two parts with tokens of their own (arXiv:2207.14255). Which tokens a vocabulary
has tells which way of writing the prompt the model knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

LEADING_MARK = "☺"
"""Put before a text so that no space is encoded before it; its own tokens are dropped again."""


class FillInTokenizer(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text."""
        ...

    def token_to_id(self, token: str) -> int | None:
        """The id of a name in the vocabulary, or None."""
        ...


@dataclass(frozen=True)
class FillInStyle:
    """One way of writing the prompt: the tokens before the text that comes first, before the one that
    follows the gap, and at the gap (None: none).

    suffix_first: the prompt begins with what follows the gap. bare_suffix: what follows is encoded
    without the space that SentencePiece puts before a text. ends: tokens that end what is filled in.
    """

    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False
    bare_suffix: bool = False
    ends: tuple[str, ...] = ()


STYLES = (
    # Qwen2.5-Coder, CodeGemma
    FillInStyle(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ends=(
            "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", "<|endoftext|>",
        ),
    ),
    # StarCoder, StarCoder2, Granite Code
    FillInStyle(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ends=("<fim_pad>", "<file_sep>", "<|endoftext|>"),
    ),
    # SantaCoder
    FillInStyle(
        "<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<fim-pad>", "<|endoftext|>")
    ),
    # DeepSeek-Coder
    FillInStyle(
        "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ends=("<｜end▁of▁sentence｜>", "<|EOT|>")
    ),
    # Code Llama (arXiv:2308.12950)
    FillInStyle("▁<PRE>", "▁<SUF>", "▁<MID>", bare_suffix=True, ends=("▁<EOT>",)),
    # Codestral
    FillInStyle("[PREFIX]", "[SUFFIX]", None, suffix_first=True),
)  # fmt: skip


@dataclass(frozen=True)
class FillIn:
    """Writes the prompts of one model. ends: token ids that end what is filled in."""

    tokenizer: FillInTokenizer
    style: FillInStyle
    prefix_id: int
    suffix_id: int
    middle_id: int | None
    ends: tuple[int, ...]

    def prompt(self, prefix: str, suffix: str) -> list[int]:
        """Token ids of the prompt for what stands between the two texts."""
        before = [self.prefix_id, *self.tokenizer.encode(prefix, False)]
        after = [self.suffix_id, *self._encode_suffix(suffix)]
        parts = after + before if self.style.suffix_first else before + after
        gap = [] if self.middle_id is None else [self.middle_id]
        return [*_opening(self.tokenizer), *parts, *gap]

    def _encode_suffix(self, text: str) -> list[int]:
        if self.style.bare_suffix:
            mark = self.tokenizer.encode(LEADING_MARK, False)
            whole = self.tokenizer.encode(LEADING_MARK + text, False)
            if whole[: len(mark)] == mark:
                return whole[len(mark) :]
        return self.tokenizer.encode(text, False)


def find_fill_in(tokenizer: FillInTokenizer) -> FillIn | None:
    """How the model of this tokenizer fills in; None if its vocabulary has no tokens for it."""
    for style in STYLES:
        prefix, suffix = tokenizer.token_to_id(style.prefix), tokenizer.token_to_id(style.suffix)
        middle = None if style.middle is None else tokenizer.token_to_id(style.middle)
        if prefix is None or suffix is None or (middle is None and style.middle is not None):
            continue
        ends = (tokenizer.token_to_id(name) for name in style.ends)
        return FillIn(
            tokenizer, style, prefix, suffix, middle, tuple(end for end in ends if end is not None)
        )
    return None


def _opening(tokenizer: FillInTokenizer) -> list[int]:
    """What the model wants at the beginning of every text."""
    plain, marked = tokenizer.encode("a", False), tokenizer.encode("a", True)
    for start in range(len(marked) - len(plain) + 1):
        if marked[start : start + len(plain)] == plain:
            return marked[:start]
    return []
