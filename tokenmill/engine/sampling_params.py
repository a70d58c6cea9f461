"""How a request's tokens are chosen; field names and defaults are those of vLLM. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tokenmill.engine.structured_outputs import StructuredOutputs
from tokenmill.errors import RequestError

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy."""

MAX_LOGPROBS = 1024
"""Most alternatives that may be asked for at one position."""

MAX_N = 1024

INTEGER_LIMITS: Mapping[str, tuple[int, int | None]] = {
    "n": (1, MAX_N),
    "top_k": (-1, None),
    "max_tokens": (1, None),
    "min_tokens": (0, None),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}
"""Least and most of whole numbers; None: as many as you like."""

NUMBER_LIMITS: Mapping[str, tuple[float, float]] = {
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "temperature": (0.0, math.inf),
    "min_p": (0.0, 1.0),
}
"""Least and most of other numbers."""

POSITIVE_LIMITS: Mapping[str, float] = {"repetition_penalty": math.inf, "top_p": 1.0}
"""Most of numbers that must be above 0."""


class RequestOutputKind(Enum):
    """What each output of a stream holds."""

    CUMULATIVE = 0
    """Everything so far."""
    DELTA = 1
    """What is new."""
    FINAL_ONLY = 2
    """Only one output, at the end."""


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise RequestError(message)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class SamplingParams:
    """Raises RequestError, naming the field, if a value is invalid.

    n: answers to one prompt. presence_penalty, frequency_penalty: by tokens of the answer;
    repetition_penalty: by tokens of prompt and answer, > 1 discourages (arXiv:1909.05858).
    temperature: 0 is greedy. top_k: 0 or -1 is off. top_p: arXiv:1904.09751. min_p: arXiv:2407.01082.
    seed: the same seed gives the same tokens, whatever else runs. stop: texts that end the answer.
    bad_words: texts that are never completed. logprobs: how many alternatives at each position
    (0: only the chosen one). prompt_logprobs: the same for the prompt. max_tokens: None is as long as
    the model can. min_tokens: until then nothing ends the answer. detokenize: whether outputs have
    text. shown_token_ids: special tokens that it has although skip_special_tokens is set.
    spaces_between_special_tokens: accepted, but no supported tokenizer writes any.
    structured_outputs: the form that the answer must have (JSON Schema, regular expression, choices,
    grammar). output_kind: what streams hold.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] | None = ()
    bad_words: Sequence[str] | None = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    shown_token_ids: Sequence[int] | None = ()
    spaces_between_special_tokens: bool = True
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    structured_outputs: StructuredOutputs | Mapping[str, Any] | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words"):
            self._set_texts(name)
        for name in ("stop_token_ids", "allowed_token_ids", "shown_token_ids"):
            self._set_ids(name)
        self._set_logit_bias()
        if self.structured_outputs is not None:
            form = StructuredOutputs.read(self.structured_outputs)
            object.__setattr__(self, "structured_outputs", form)
        self._check_integers()
        self._check_numbers()
        for name in (
            "include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens",
            "spaces_between_special_tokens",
        ):  # fmt: skip
            value = getattr(self, name)
            _require(isinstance(value, bool), f"{name} must be true or false, not {value!r}")
        _require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            f"min_tokens ({self.min_tokens}) is more than max_tokens ({self.max_tokens})",
        )
        _require(
            self.detokenize or not self.stop,
            "stop texts are found in the answer's text: leave detokenize on, or use stop_token_ids",
        )

    def _set_texts(self, name: str) -> None:
        value = getattr(self, name)
        texts = (value,) if isinstance(value, str) else value or ()
        _require(
            isinstance(texts, Sequence) and all(isinstance(t, str) and t for t in texts),
            f"{name} must be texts that are not empty, not {value!r}",
        )
        object.__setattr__(self, name, tuple(texts))

    def _set_ids(self, name: str) -> None:
        value = getattr(self, name)
        if value is None:
            object.__setattr__(self, name, None if name == "allowed_token_ids" else ())
            return
        _require(
            isinstance(value, Sequence) and all(_is_int(t) and t >= 0 for t in value),
            f"{name} must be a list of token ids, not {value!r}",
        )
        _require(
            name != "allowed_token_ids" or len(value) > 0,
            "allowed_token_ids is empty, so no token could follow; leave it out or name some",
        )
        object.__setattr__(self, name, tuple(value))

    def _set_logit_bias(self) -> None:
        if self.logit_bias is None:
            return
        _require(
            isinstance(self.logit_bias, Mapping),
            f"logit_bias must map token ids to numbers, not {self.logit_bias!r}",
        )
        bias: dict[int, float] = {}
        for token, value in self.logit_bias.items():
            try:
                bias[int(token)] = float(value)
            except (TypeError, ValueError):
                raise RequestError(
                    f"logit_bias must map token ids to numbers, but has {token!r}: {value!r}"
                ) from None
        _require(
            all(t >= 0 and math.isfinite(v) for t, v in bias.items()),
            "logit_bias must map token ids to finite numbers",
        )
        # Larger values mean the same, and could overflow.
        bias = {token: min(max(value, -100.0), 100.0) for token, value in bias.items()}
        object.__setattr__(self, "logit_bias", bias)

    def _check_integers(self) -> None:
        for name, (least, most) in INTEGER_LIMITS.items():
            value = getattr(self, name)
            if value is None and name in ("max_tokens", "logprobs", "prompt_logprobs"):
                continue
            between = f"at least {least}" if most is None else f"from {least} to {most}"
            _require(
                _is_int(value) and value >= least and (most is None or value <= most),
                f"{name} must be an integer, {between}, not {value!r}",
            )
        _require(self.seed is None or _is_int(self.seed), f"seed must be an integer, not {self.seed!r}")

    def _check_numbers(self) -> None:
        for name, (least, limit) in NUMBER_LIMITS.items():
            value = getattr(self, name)
            between = f"at least {least:g}" if limit == math.inf else f"from {least:g} to {limit:g}"
            _require(
                _is_number(value) and least <= value <= limit,
                f"{name} must be a number, {between}, not {value!r}",
            )
        for name, limit in POSITIVE_LIMITS.items():
            value = getattr(self, name)
            atmost = "" if limit == math.inf else f" and at most {limit:g}"
            _require(
                _is_number(value) and 0 < value <= limit,
                f"{name} must be a number above 0{atmost}, not {value!r}",
            )

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def penalises(self) -> bool:
        """Whether earlier tokens change the logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def with_max_tokens(self, max_tokens: int) -> SamplingParams:
        """The same, with another limit."""
        return replace(self, max_tokens=max_tokens)
