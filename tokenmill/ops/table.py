"""The operator table: each operator declared once, any number of providers.

A declaration is a frozen dataclass of what is known when the model is loaded (weights, shapes,
options). ``OpTable.bind`` chooses a provider for it then, once, and returns a callable that takes only
what changes from step to step. All activations are fp32 ``[capacity, width]``, contiguous; how many
rows are in use is read from an int32 ``[1]`` tensor when the operator runs, so a recorded program
serves every batch size.

The meaning of each operator is its plain-torch reference, in ``ops/reference.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch

from tokenmill.weights.tensor import RawTensor

log = logging.getLogger("tokenmill.ops")

Activation = Literal["silu", "gelu", "gelu_tanh", "swiglu_oai", "relu", "relu2"]
"""What gates: ``act(gate) * up``. swiglu_oai (gpt-oss): gate at most 7, up within -7 .. 7,
``gate * sigmoid(1.702 * gate) * (up + 1)``.
"""

Scoring = Literal["softmax", "sigmoid", "softmax_of_chosen"]

LOGITS = "logits"
"""The label of the matrix product that runs only over the rows whose logits are wanted."""


class Weight(Protocol):
    """A matrix [out_features, in_features] in a provider's own packing."""

    @property
    def provider(self) -> str:
        """Who packed it."""
        ...

    @property
    def out_features(self) -> int:
        """Rows."""
        ...

    @property
    def in_features(self) -> int:
        """Columns."""
        ...

    @property
    def formats(self) -> tuple[str, ...]:
        """The checkpoint's formats of its segments, each once."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        ...

    def dense(self) -> torch.Tensor:
        """The matrix as fp32 [out_features, in_features]."""
        ...


@dataclass(frozen=True)
class Embed:
    """``out[t] = weight[ids[t]] * scale`` (+ out if accumulate). Call: ``(rows, ids, out)``, ids int32.

    Learned position embeddings are an embedding of positions, added to that of tokens.
    """

    op: ClassVar[str] = "embed"
    weight: Weight
    scale: float = 1.0
    accumulate: bool = False


@dataclass(frozen=True)
class Linear:
    """A matrix product with what goes before and after it.

    Call: ``(rows, x, out)``, or ``(rows, x, out, row_index)`` to take row ``row_index[i]`` of x for
    output row i.

    x' = RMSNorm(x) * norm                    if norm is given (width in_features)
         LayerNorm(x) * norm + norm_bias      if norm is given and centre is true
         act(x[:, :K]) * x[:, K:]             if act is given (x is [*, 2 * in_features], gate first)
         act(x)                               if act is given and gated is false
    y  = (x' @ weight.T + bias) * scale
    y  = softcap * tanh(y / softcap)          if softcap > 0
    out = out + y if accumulate else y

    Where the weight is quantised, x' is first quantised to int8 in groups of 32 along K:
    scale = max|x'| / 127, q = round-half-even(x' * (1 / scale)).

    label: what profiles call it.
    """

    op: ClassVar[str] = "linear"
    weight: Weight
    norm: torch.Tensor | None = None
    eps: float = 0.0
    act: Activation | None = None
    bias: torch.Tensor | None = None
    softcap: float = 0.0
    accumulate: bool = False
    label: str = "linear"
    norm_bias: torch.Tensor | None = None
    centre: bool = False
    gated: bool = True
    scale: float = 1.0


@dataclass(frozen=True)
class RmsNorm:
    """``out = x / sqrt(mean(x^2) + eps) * weight`` (+ out if accumulate). Call: ``(rows, x, out)``."""

    op: ClassVar[str] = "rms_norm"
    weight: torch.Tensor
    eps: float
    accumulate: bool = False


@dataclass(frozen=True)
class LayerNorm:
    """``out = (x - mean) / sqrt(variance + eps) * weight + bias`` (+ out if accumulate).

    Call: ``(rows, x, out)``; out may be x. arXiv:1607.06450.
    """

    op: ClassVar[str] = "layer_norm"
    weight: torch.Tensor
    eps: float
    bias: torch.Tensor | None = None
    accumulate: bool = False


@dataclass(frozen=True)
class RopeTable:
    """Cosines and sines of this step's positions. Call: ``(rows, positions, out)``.

    inv_freq: fp32 [rotary_dim / 2]. out: [capacity, rotary_dim]: cosines, then sines, both times
    ``scale`` (the attention factor of YaRN and longrope).
    """

    op: ClassVar[str] = "rope_table"
    inv_freq: torch.Tensor
    scale: float = 1.0


@dataclass(frozen=True)
class RopeStore:
    """Normalise and rotate queries and keys, store keys and values. Call: ``(step, rope, qkv, cache)``.

    qkv: [capacity, (num_heads + 2 * num_kv_heads) * head_dim]; queries are rotated in place (keys may
    be too). rope: this step's RopeTable output, [capacity, rotary_dim]; rotary_dim <= head_dim, the
    rest passes through (all of it where rotary_dim is 0; rope is not read then). Pairs are
    (i, i + rotary_dim / 2) (the Hugging Face convention). q_norm, k_norm: fp32 [head_dim], RMSNorm per
    head before the rotation; whole_norm: one RMSNorm over all heads instead, fp32
    [num_heads * head_dim] and [num_kv_heads * head_dim] (OLMo 2). A cache of int8 keeps each head of
    each token with its own scale: max|x| / 127, and q = round-half-even(x * (1 / scale)).
    """

    op: ClassVar[str] = "rope_store"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    cache_dtype: torch.dtype
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 0.0
    whole_norm: bool = False


@dataclass(frozen=True)
class Attention:
    """Causal attention over the paged cache. Call: ``(step, qkv, cache, out)``.

    Queries are the first num_heads * head_dim columns of qkv; out: [capacity, num_heads * head_dim].
    A token at position p sees positions max(0, p - window + 1) .. p (window 0: all).
    Scores are ``scale * q.k``, then ``softcap * tanh(s / softcap)`` if softcap > 0.
    sinks: fp32 [num_heads], for each head the score of one more position whose value is zero (gpt-oss).
    slopes: fp32 [num_heads]; a key d positions before the query gets ``-slope * d`` added to its score
    (ALiBi, arXiv:2108.12409).
    """

    op: ClassVar[str] = "attention"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    cache_dtype: torch.dtype
    softcap: float = 0.0
    window: int = 0
    sinks: torch.Tensor | None = None
    slopes: torch.Tensor | None = None


@dataclass(frozen=True)
class Route:
    """Which experts each token goes to. Call: ``(rows, logits, ids, weights)``.

    logits: [capacity, num_experts], and with shared_gate one more for each shared expert.
    ids: int32 [capacity, top_k + shared], ascending; weights: fp32, likewise. Shared experts come last,
    with ids from num_experts on, and with weight 1, or the sigmoid of their logit.

    scores = softmax(logits) or sigmoid(logits); "softmax_of_chosen" scores by the logits, and takes the
    softmax over the chosen at the end (gpt-oss). The top_k largest of scores + bias are chosen, the
    first among equals; with num_groups > 1, only from the top_groups groups of neighbours that score
    most: by their best expert, or by the sum of their best two if group_sum (DeepSeek-V3,
    arXiv:2412.19437). weights = scores of the chosen, divided by their sum if renormalise, times scale.
    """

    op: ClassVar[str] = "route"
    num_experts: int
    top_k: int
    scoring: Scoring = "softmax"
    renormalise: bool = False
    scale: float = 1.0
    bias: torch.Tensor | None = None
    num_groups: int = 1
    top_groups: int = 1
    group_sum: bool = False
    shared: int = 0
    shared_gate: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.top_k <= self.num_experts or self.num_experts % self.num_groups:
            raise ValueError("top_k is at most num_experts, which num_groups divides")
        if self.num_experts // self.num_groups * self.top_groups < self.top_k:
            raise ValueError("the chosen groups hold fewer than top_k experts")


@dataclass(frozen=True)
class Experts:
    """The experts of a layer. Call: ``(rows, x, ids, weights, out)``.

    x, out: [capacity, hidden]; ids, weights: from Route. Of each expert, gate_up holds the rows of the
    gate, then of up; experts may differ in width.

    out[t] += sum over j, in order, of weights[t, j] * down(act(gate(x[t])) * up(x[t])) of expert
    ids[t, j]. With weigh_input (Llama 4), x is multiplied by the weight instead. Quantised weights meet
    activations of int8, as in Linear.
    """

    op: ClassVar[str] = "experts"
    gate_up: tuple[Weight, ...]
    down: tuple[Weight, ...]
    per_token: int
    act: Activation
    gate_up_bias: tuple[torch.Tensor, ...] = ()
    down_bias: tuple[torch.Tensor, ...] = ()
    weigh_input: bool = False


OpParams = Embed | Linear | RmsNorm | LayerNorm | RopeTable | RopeStore | Attention | Route | Experts


class Provider(Protocol):
    """Something that can run operators."""

    name: str

    def why_not(self, params: OpParams) -> str | None:
        """None if this provider can run the operator, else the reason why not."""
        ...

    def bind(self, params: OpParams) -> Callable[..., None]:
        """The operator, ready to be called."""
        ...

    def why_not_pack(self, segments: Sequence[RawTensor]) -> str | None:
        """None if this provider can pack these row segments into one matrix, else why not."""
        ...

    def pack(self, segments: Sequence[RawTensor]) -> Weight:
        """One matrix out of row segments (same in_features), in this provider's layout."""
        ...


class Contest(Protocol):
    """Providers of Linear alone that get a matrix where they are faster (see ops/rivals.py)."""

    providers: list[Provider]

    def pack(self, preferred: Provider, segments: Sequence[RawTensor]) -> Weight:
        """The matrix, packed by the fastest."""
        ...

    def stands(self, weight: Weight) -> bool:
        """Whether a matrix that was packed at an earlier start would go to the same provider now."""
        ...


@dataclass
class OpTable:
    """The providers in order of preference, and what was chosen.

    rivals: providers that may get a matrix instead of the preferred one.
    """

    providers: Sequence[Provider]
    rivals: Contest | None = None
    chosen: list[tuple[str, str, str]] = field(default_factory=list)
    """(operator, detail, provider) in order of binding; ``tokenmill info`` prints it."""
    bound: list[OpParams] = field(default_factory=list)
    """The declarations in order of binding; profiles count their work."""

    def bind(self, params: OpParams) -> Callable[..., None]:
        """The operator from the first provider that can run it.

        Raises LookupError if none can, with every provider's reason.
        """
        reasons: list[str] = []
        rivals = self.rivals.providers if self.rivals else []
        for provider in [*self.providers, *rivals]:
            reason = provider.why_not(params)
            if reason is None:
                self.chosen.append((params.op, describe(params), provider.name))
                self.bound.append(params)
                return provider.bind(params)
            reasons.append(f"{provider.name}: {reason}")
        raise LookupError(f"no provider runs {params.op} ({describe(params)}): " + "; ".join(reasons))

    def pack(self, segments: Sequence[RawTensor], *, only_linear: bool = False) -> Weight:
        """Row segments (of one or more checkpoint tensors) as one packed matrix.

        only_linear: no other operator than Linear needs the matrix.
        Raises LookupError if no provider can pack it, with every provider's reason.
        """
        reasons: list[str] = []
        for provider in self.providers:
            reason = provider.why_not_pack(segments)
            if reason is None:
                contested = self.rivals if only_linear else None
                return contested.pack(provider, segments) if contested else provider.pack(segments)
            reasons.append(f"{provider.name}: {reason}")
        names = ", ".join(s.name for s in segments)
        raise LookupError(f"no provider packs {names}: " + "; ".join(reasons))

    def stands(self, weight: Weight) -> bool:
        """Whether a matrix that was packed at an earlier start would go to the same provider now."""
        return self.rivals is None or self.rivals.stands(weight)


def describe(params: OpParams) -> str:
    """A short text for logs and ``tokenmill info``."""
    parts: list[Any] = []
    weight = getattr(params, "weight", None)
    if weight is not None and not isinstance(weight, torch.Tensor):
        parts.append(f"{weight.out_features}x{weight.in_features} {'+'.join(weight.formats)}")
    for name in ("num_heads", "num_kv_heads", "head_dim", "window"):
        value = getattr(params, name, 0)
        if value:
            parts.append(f"{name}={value}")
    return " ".join(map(str, parts))


def operator_name(params: OpParams) -> str:
    """What profiles call an operator; operators of one name are added up."""
    if not isinstance(params, Linear):
        return params.op
    before = "norm + " if params.norm is not None else f"{params.act} + " if params.act else ""
    after = " + add" if params.accumulate else ""
    return f"{before}{params.label} {params.weight.out_features}x{params.weight.in_features}{after}"
