"""The gated feed-forward layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenmill.engine.step import StepBuffers
from tokenmill.layers.scratch import Scratch
from tokenmill.ops.table import Activation, Linear, OpTable, RmsNorm, Weight


@dataclass(frozen=True)
class MLPWeights:
    """The parameters of one feed-forward layer.

    norm: RMSNorm before it, fp32 [hidden]. gate_up: rows of the gate, then of up.
    post_norm: RMSNorm of the branch before it is added to the residual stream (Gemma).
    """

    norm: torch.Tensor
    gate_up: Weight
    down: Weight
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    post_norm: torch.Tensor | None = None


class GatedMLP:
    """``hidden += post_norm(down(act(gate(x)) * up(x)))`` with ``x = norm(hidden)``."""

    def __init__(
        self, ops: OpTable, weights: MLPWeights, scratch: Scratch, *, act: Activation, eps: float
    ) -> None:
        self._gate_up = ops.bind(
            Linear(
                weights.gate_up, norm=weights.norm, eps=eps, bias=weights.gate_up_bias, label="gate, up"
            )
        )
        self._down = ops.bind(
            Linear(
                weights.down,
                act=act,
                bias=weights.down_bias,
                accumulate=weights.post_norm is None,
                label="down",
            )
        )
        self._post_norm = None
        if weights.post_norm is not None:
            self._post_norm = ops.bind(RmsNorm(weights.post_norm, eps, accumulate=True))
            self._branch = scratch.get("branch", weights.down.out_features)
        self._gate_up_buffer = scratch.get("gate_up", weights.gate_up.out_features)

    def forward(self, hidden: torch.Tensor, step: StepBuffers) -> None:
        """Add this layer's output to hidden, fp32 [max_tokens, hidden_size]."""
        rows = step.num_tokens
        self._gate_up(rows, hidden, self._gate_up_buffer)
        if self._post_norm is None:
            self._down(rows, self._gate_up_buffer, hidden)
        else:
            self._down(rows, self._gate_up_buffer, self._branch)
            self._post_norm(rows, self._branch, hidden)
