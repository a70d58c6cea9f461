"""Counts the tokens of one HTTP request."""

from __future__ import annotations

from typing import Any

from tokenmill.engine.outputs import RequestOutput
from tokenmill.server.protocol import Common


class Usage:
    """Tokens of prompts and answers, as outputs come in. Outputs may be deltas or whole."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._generated = 0

    def add(self, index: int, out: RequestOutput, *, generated: bool = True) -> None:
        """Count what ``out`` brings. index: of the prompt."""
        self._prompts[index] = (len(out.prompt_token_ids), out.num_cached_tokens or 0)
        if generated:
            self._generated += sum(len(part.token_ids) for part in out.outputs)

    def values(self) -> dict[str, Any]:
        """In the OpenAI API's words."""
        prompt = sum(count for count, _ in self._prompts.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._generated,
            "total_tokens": prompt + self._generated,
            "prompt_tokens_details": {"cached_tokens": sum(c for _, c in self._prompts.values())},
        }

    def beside_piece(self, common: Common) -> dict[str, Any]:
        """What a piece of a stream says of the usage: nothing, null, or all so far."""
        if common.continuous_usage:
            return {"usage": self.values()}
        return {"usage": None} if common.include_usage else {}
