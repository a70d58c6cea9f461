"""The feed-forward layer of many experts, of which each token uses a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tokenmill.cache.spec import CacheSpec
from tokenmill.engine.step import StepBuffers
from tokenmill.layers.scratch import Scratch
from tokenmill.ops.table import Activation, Experts, Linear, OpTable, RmsNorm, Route, Weight


@dataclass(frozen=True)
class MoEWeights:
    """The parameters of one such layer.

    norm: RMSNorm before it, fp32 [hidden]. router: a row for each expert, then one for each gate of a
    shared expert. gate_up, down: of every expert, shared ones last. route: how experts are chosen.
    """

    norm: torch.Tensor
    router: Weight
    gate_up: tuple[Weight, ...]
    down: tuple[Weight, ...]
    route: Route


class SparseMLP:
    """``hidden += sum of weight * expert(norm(hidden))`` over the experts of each token."""

    cache_specs: tuple[CacheSpec, ...] = ()

    def __init__(
        self, ops: OpTable, weights: MoEWeights, scratch: Scratch, *, act: Activation, eps: float
    ) -> None:
        per_token = weights.route.top_k + weights.route.shared
        self._norm = ops.bind(RmsNorm(weights.norm, eps))
        self._router = ops.bind(Linear(weights.router, label="router"))
        self._route = ops.bind(weights.route)
        self._experts = ops.bind(Experts(weights.gate_up, weights.down, per_token, act))
        self._normed = scratch.get("normed", weights.router.in_features)
        self._logits = scratch.get("router", weights.router.out_features)
        self._weights = scratch.get("expert weights", per_token)
        # Ids are as wide as floats, so they go through the same kind of buffer.
        self._ids = scratch.get("expert ids", per_token).view(torch.int32)

    def read(self, hidden: torch.Tensor, step: StepBuffers) -> None:
        """The first half: take what is needed from hidden, which is free to change then."""
        rows = step.num_tokens
        self._norm(rows, hidden, self._normed)
        self._router(rows, self._normed, self._logits)
        self._route(rows, self._logits, self._ids, self._weights)

    def add(self, hidden: torch.Tensor, step: StepBuffers, caches: Sequence[object] = ()) -> None:
        """The second half: add to hidden, fp32 [max_tokens, hidden_size], this layer's output."""
        rows = step.num_tokens
        self._experts(rows, self._normed, self._ids, self._weights, hidden)
