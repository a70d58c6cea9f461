"""Rotary position embedding: the frequencies of each scaling method, and the layer that tabulates them.

RoPE is from Su et al., arXiv:2104.09864. The frequencies of a head with ``rotary_dim`` rotated
coordinates are ``theta ** (-2 i / rotary_dim)``; scaling methods change them so that a model can read
texts longer than those it was trained on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from tokenmill.engine.step import StepBuffers
from tokenmill.layers.scratch import Scratch
from tokenmill.ops.table import OpTable, RopeTable

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]


@dataclass(frozen=True)
class RopeSpec:
    """A model's rotary embedding, as its configuration describes it.

    rotary_dim: coordinates of a head that are rotated. max_position: the configured context.
    factor: how many times longer the context became. original_max_position: context in pretraining.
    attention_factor: multiplies cosines and sines; None takes the method's own rule.
    low_freq_factor, high_freq_factor: llama3. beta_*, mscale*, truncate: YaRN.
    short_factor, long_factor: longrope, one divisor for each frequency.
    """

    kind: RopeKind
    theta: float
    rotary_dim: int
    max_position: int
    factor: float = 1.0
    original_max_position: int = 0
    attention_factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @property
    def position_limit(self) -> int:
        """The longest text that this scaling makes readable."""
        if self.kind == "dynamic":
            return int(self.max_position * self.factor)
        if self.kind == "yarn":
            return max(self.max_position, int(self.original_max_position * self.factor))
        return self.max_position


@dataclass(frozen=True)
class Rope:
    """inv_freq: fp32 [rotary_dim / 2]. scale: multiplies cosines and sines."""

    inv_freq: torch.Tensor
    scale: float


def rope_frequencies(
    spec: RopeSpec, max_model_len: int, freq_factors: torch.Tensor | None = None
) -> Rope:
    """The frequencies that a model served up to ``max_model_len`` tokens uses for every text.

    "dynamic" (NTK-aware) and "longrope" choose their frequencies by the length of the text. Cached keys
    hold rotated values, so one choice has to serve all lengths: both are fixed as for a text of
    ``max_model_len`` tokens. A smaller max_model_len gives short texts their own frequencies back.

    freq_factors: fp32 [rotary_dim / 2] that a GGUF file brings along ("rope_freqs.weight"); frequencies
    are divided by it.
    """
    inv_freq = 1.0 / _powers(spec.theta, spec.rotary_dim)
    scale = 1.0 if spec.attention_factor is None else spec.attention_factor
    match spec.kind:
        case "default":
            pass
        case "linear":
            inv_freq = inv_freq / spec.factor
        case "dynamic":
            inv_freq = _dynamic(spec, max_model_len)
        case "llama3":
            inv_freq = _llama3(spec, inv_freq)
        case "yarn":
            inv_freq = _yarn(spec)
            if spec.attention_factor is None:
                scale = _yarn_scale(spec)
        case "longrope":
            inv_freq = _longrope(spec, max_model_len)
            if spec.attention_factor is None:
                scale = _longrope_scale(spec)
    if freq_factors is not None:
        inv_freq = inv_freq / freq_factors
    return Rope(inv_freq.contiguous(), scale)


def _powers(theta: float, rotary_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    powers: torch.Tensor = theta**exponents
    return powers


def _dynamic(spec: RopeSpec, max_model_len: int) -> torch.Tensor:
    """NTK-aware scaling: a larger base stretches low frequencies and leaves high ones alone."""
    stretch = spec.factor * max(max_model_len, spec.max_position) / spec.max_position - (
        spec.factor - 1
    )
    theta = spec.theta * stretch ** (spec.rotary_dim / (spec.rotary_dim - 2))
    return 1.0 / _powers(theta, spec.rotary_dim)


def _llama3(spec: RopeSpec, inv_freq: torch.Tensor) -> torch.Tensor:
    """Llama 3.1: long waves are slowed by the factor, short ones kept, those between blended."""
    turns = spec.original_max_position * inv_freq / (2 * math.pi)
    blend = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * inv_freq / spec.factor + blend * inv_freq


def _yarn(spec: RopeSpec) -> torch.Tensor:
    """YaRN, arXiv:2309.00071: blend by how many turns a coordinate makes in the original context."""

    def coordinate(turns: float) -> float:
        """Where (as a real index) a frequency makes that many turns."""
        waves = spec.original_max_position / (turns * 2 * math.pi)
        return spec.rotary_dim * math.log(waves) / (2 * math.log(spec.theta))

    low, high = coordinate(spec.beta_fast), coordinate(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.rotary_dim - 1)
    if low == high:
        high += 0.001
    index = torch.arange(spec.rotary_dim // 2, dtype=torch.float32)
    interpolated = ((index - low) / (high - low)).clamp(0, 1)
    inv_freq = 1.0 / _powers(spec.theta, spec.rotary_dim)
    return inv_freq / spec.factor * interpolated + inv_freq * (1 - interpolated)


def _yarn_scale(spec: RopeSpec) -> float:
    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(spec.factor) + 1.0 if spec.factor > 1 else 1.0

    if spec.mscale and spec.mscale_all_dim:
        return temperature(spec.mscale) / temperature(spec.mscale_all_dim)
    return temperature(1.0)


def _longrope(spec: RopeSpec, max_model_len: int) -> torch.Tensor:
    """LongRoPE, arXiv:2402.13753: a searched divisor for each frequency."""
    long = max_model_len > spec.original_max_position
    factors = torch.tensor(spec.long_factor if long else spec.short_factor, dtype=torch.float32)
    return 1.0 / (factors * _powers(spec.theta, spec.rotary_dim))


def _longrope_scale(spec: RopeSpec) -> float:
    if spec.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(spec.factor) / math.log(spec.original_max_position))


class RotaryEmbedding:
    """Tabulates cosines and sines of a step's positions, once for all layers that share them."""

    def __init__(self, ops: OpTable, rope: Rope, scratch: Scratch, name: str) -> None:
        self._table = ops.bind(RopeTable(rope.inv_freq, rope.scale))
        self.out = scratch.get(f"rope.{name}", 2 * rope.inv_freq.numel())
        """fp32 [max_tokens, rotary_dim]."""

    def forward(self, step: StepBuffers) -> None:
        """Fill ``out`` for this step."""
        self._table(step.num_tokens, step.positions, self.out)
