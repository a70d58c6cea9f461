"""What the sampler keeps of one request, so that a step does no work in proportion to its length."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tokenmill.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tokenmill.engine.grammars import AnswerGrammar


class SamplingState:
    """One answer's sampling parameters and history.

    end_ids: tokens that end the answer (banned until min_tokens). bad_words: token ids of each.
    seed, sample: of its random numbers. num_output: tokens so far. grammar: the form it must have.
    seen_ids, seen_counts: distinct tokens of prompt and answer, and how often each is in the answer;
    kept only if a penalty needs them.
    """

    __slots__ = (
        "_slots", "allowed_ids", "bad_words", "bias_ids", "bias_values", "end_ids", "grammar",
        "num_output", "params", "plain_greedy", "sample", "seed", "seen_counts", "seen_ids",
        "single_bad_ids", "tail",
    )  # fmt: skip

    def __init__(
        self,
        params: SamplingParams,
        prompt: Iterable[int],
        *,
        end_ids: Sequence[int],
        bad_words: Sequence[Sequence[int]],
        seed: int,
        sample: int,
        grammar: AnswerGrammar | None = None,
    ) -> None:
        self.grammar = grammar
        self.params = params
        self.seed = seed
        self.sample = sample
        self.num_output = 0
        self.end_ids = array("q", sorted(set(end_ids)))
        self.single_bad_ids = array("q", sorted({word[0] for word in bad_words if len(word) == 1}))
        self.bad_words = tuple(tuple(word) for word in bad_words if len(word) > 1)
        self.tail: list[int] = []
        bias = params.logit_bias or {}
        self.bias_ids = array("q", bias.keys())
        self.bias_values = array("f", bias.values())
        self.allowed_ids = array("q", sorted(set(params.allowed_token_ids or ())))
        self.seen_ids = array("q")
        self.seen_counts = array("f")
        self._slots: dict[int, int] = {}
        if params.penalises:
            for token in prompt:
                self._see(token, 0.0)
        self.plain_greedy = (
            params.greedy
            and params.logprobs is None
            and not (params.penalises or bias or self.allowed_ids or bad_words or grammar)
            and params.min_tokens == 0
        )

    def _see(self, token: int, count: float) -> None:
        slot = self._slots.get(token)
        if slot is None:
            self._slots[token] = len(self.seen_ids)
            self.seen_ids.append(token)
            self.seen_counts.append(count)
        else:
            self.seen_counts[slot] += count

    def append(self, token: int) -> None:
        """The answer has grown by this token."""
        self.num_output += 1
        if self.grammar is not None:
            self.grammar.accept(token)
        if self.params.penalises:
            self._see(token, 1.0)
        if self.bad_words:
            self.tail.append(token)
            longest = max(map(len, self.bad_words)) - 1
            del self.tail[:-longest]

    def banned(self) -> array[int]:
        """Tokens that must not come next, apart from those that are not allowed at all."""
        banned = array("q", self.single_bad_ids)
        # Once the form allows nothing but the end, that is the end, however few tokens there are.
        complete = self.grammar is not None and self.grammar.complete
        if self.num_output < self.params.min_tokens and not complete:
            banned.extend(self.end_ids)
        for word in self.bad_words:
            if tuple(self.tail[1 - len(word) :]) == word[:-1]:
                banned.append(word[-1])
        return banned
