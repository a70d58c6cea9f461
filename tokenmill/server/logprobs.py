"""Log-probabilities in the two forms of the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenmill.engine.outputs import CompletionOutput, Logprob, RequestOutput
from tokenmill.server.protocol import ServingTokenizer

LEAST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def finite(value: float) -> float:
    """A log-probability that JSON can hold."""
    return max(value, LEAST) if value == value else LEAST


def _text(token: int, entry: Logprob) -> str:
    return entry.decoded_token if entry.decoded_token is not None else f"token_id:{token}"


@dataclass
class LegacyLogprobs:
    """``logprobs`` of /v1/completions, growing. ``take`` hands out what is new."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)
    _length: int = 0

    def add(
        self, token_ids: Sequence[int], entries: Sequence[Mapping[int, Logprob] | None], count: int
    ) -> None:
        """Tokens and their candidates (None: the first of a prompt). count: alternatives asked for."""
        for token, entry in zip(token_ids, entries, strict=True):
            own = entry.get(token) if entry is not None else None
            text = _text(token, own) if own is not None else ""
            self.tokens.append(text)
            self.token_logprobs.append(None if own is None else finite(own.logprob))
            self.top_logprobs.append(None if entry is None or not count else _best(entry, count))
            self.text_offset.append(self._length)
            self._length += len(text)

    def name_first(self, text: str) -> None:
        """The text of a prompt's first token, which has no candidates."""
        if self.tokens and not self.tokens[0]:
            self.tokens[0] = text
            self.text_offset[1:] = [offset + len(text) for offset in self.text_offset[1:]]
            self._length += len(text)

    def take(self) -> dict[str, Any]:
        """What was added since the last time."""
        taken = {
            "text_offset": self.text_offset,
            "token_logprobs": self.token_logprobs,
            "tokens": self.tokens,
            "top_logprobs": self.top_logprobs,
        }
        self.text_offset, self.token_logprobs = [], []
        self.tokens, self.top_logprobs = [], []
        return taken


def _best(entry: Mapping[int, Logprob], count: int) -> dict[str, float]:
    """The likeliest candidates by text. Different tokens may have the same text; the likelier stays."""
    best: dict[str, float] = {}
    for token, candidate in entry.items():
        if candidate.rank is None or candidate.rank <= count:
            text = _text(token, candidate)
            value = finite(candidate.logprob)
            best[text] = max(best.get(text, LEAST), value)
    return best


def prompt_logprobs(out: RequestOutput, count: int) -> list[dict[str, Any] | None]:
    """``prompt_logprobs`` as vLLM has them: for each token of the prompt, None or candidates by
    token id: the token itself and the ``count`` likeliest.
    """
    entries = zip(out.prompt_token_ids, out.prompt_logprobs or (), strict=True)
    return [None if entry is None else _by_id(token, entry, count) for token, entry in entries]


def _by_id(token: int, entry: Mapping[int, Logprob], count: int) -> dict[str, Any]:
    return {
        str(candidate): {
            "logprob": finite(found.logprob),
            "rank": found.rank,
            "decoded_token": found.decoded_token,
        }
        for candidate, found in entry.items()
        if candidate == token or found.rank is None or found.rank <= count
    }


def chat_logprobs(
    part: CompletionOutput, tokenizer: ServingTokenizer | None, count: int
) -> dict[str, Any]:
    """``logprobs`` of a chat choice for the tokens of ``part``."""
    content = []
    for token, entry in zip(part.token_ids, part.logprobs or (), strict=True):
        ranked = sorted(
            (c for c in entry.items() if c[1].rank is None or c[1].rank <= count),
            key=lambda candidate: candidate[1].rank or 0,
        )
        content.append(
            {
                **_chat_entry(token, entry[token], tokenizer),
                "top_logprobs": [_chat_entry(t, e, tokenizer) for t, e in ranked] if count else [],
            }
        )
    return {"content": content, "refusal": None}


def _chat_entry(token: int, entry: Logprob, tokenizer: ServingTokenizer | None) -> dict[str, Any]:
    data = tokenizer.token_bytes(token) if tokenizer is not None else None
    return {
        "token": _text(token, entry),
        "logprob": finite(entry.logprob),
        "bytes": None if data is None else list(data),
    }
