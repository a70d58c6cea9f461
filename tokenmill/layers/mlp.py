"""The feed-forward layers, gated and plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tokenmill.cache.spec import CacheSpec
from tokenmill.engine.step import StepBuffers
from tokenmill.layers.scratch import Scratch
from tokenmill.ops.table import Activation, Linear, OpTable, RmsNorm, Weight


@dataclass(frozen=True)
class MLPWeights:
    """The parameters of one feed-forward layer.

    norm: before it, fp32 [hidden]; None is no norm. norm_bias: of a LayerNorm.
    gate_up: rows of the gate, then of up; of a plain layer, of up alone.
    post_norm: RMSNorm of the branch before it is added to the residual stream (Gemma).
    """

    norm: torch.Tensor | None
    gate_up: Weight
    down: Weight
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    post_norm: torch.Tensor | None = None
    norm_bias: torch.Tensor | None = None
    gated: bool = True


class MLP:
    """``hidden += scale * post_norm(down(act(gate(x)) * up(x)))`` with ``x = norm(hidden)``.

    Of a plain layer, ``hidden += scale * post_norm(down(act(up(x))))``. layer_norm: the norm before it
    is a LayerNorm, not an RMSNorm. scale: multiplies the branch (Granite), which has no post_norm then.
    """

    cache_specs: tuple[CacheSpec, ...] = ()

    def __init__(
        self,
        ops: OpTable,
        weights: MLPWeights,
        scratch: Scratch,
        *,
        act: Activation,
        eps: float,
        layer_norm: bool = False,
        scale: float = 1.0,
    ) -> None:
        self._gate_up = ops.bind(
            Linear(
                weights.gate_up,
                norm=weights.norm,
                norm_bias=weights.norm_bias,
                centre=layer_norm,
                eps=eps,
                bias=weights.gate_up_bias,
                label="gate, up" if weights.gated else "up",
            )
        )
        self._down = ops.bind(
            Linear(
                weights.down,
                act=act,
                gated=weights.gated,
                bias=weights.down_bias,
                accumulate=weights.post_norm is None,
                scale=scale,
                label="down",
            )
        )
        self._post_norm = None
        if weights.post_norm is not None:
            self._post_norm = ops.bind(RmsNorm(weights.post_norm, eps, accumulate=True))
            self._branch = scratch.get("branch", weights.down.out_features)
        self._gate_up_buffer = scratch.get("gate_up", weights.gate_up.out_features)

    def read(self, hidden: torch.Tensor, step: StepBuffers) -> None:
        """The first half: take what is needed from hidden, which is free to change then."""
        self._gate_up(step.num_tokens, hidden, self._gate_up_buffer)

    def add(self, hidden: torch.Tensor, step: StepBuffers, caches: Sequence[object] = ()) -> None:
        """The second half: add to hidden, fp32 [max_tokens, hidden_size], this layer's output."""
        rows = step.num_tokens
        if self._post_norm is None:
            self._down(rows, self._gate_up_buffer, hidden)
        else:
            self._down(rows, self._gate_up_buffer, self._branch)
            self._post_norm(rows, self._branch, hidden)
