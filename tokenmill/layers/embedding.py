"""The two ends of a decoder: token ids to hidden states, and hidden states to logits."""

from __future__ import annotations

import torch

from tokenmill.engine.step import StepBuffers
from tokenmill.layers.scratch import Scratch
from tokenmill.ops.table import LOGITS, Embed, Linear, OpTable, Weight


class Embedding:
    """Looks tokens up, times ``scale``; the result starts the residual stream."""

    def __init__(self, ops: OpTable, weight: Weight, scratch: Scratch, scale: float = 1.0) -> None:
        self._embed = ops.bind(Embed(weight, scale))
        self._out = scratch.get("hidden", weight.in_features)

    def forward(self, step: StepBuffers) -> torch.Tensor:
        """fp32 [max_tokens, hidden_size]."""
        self._embed(step.num_tokens, step.token_ids, self._out)
        return self._out


class LMHead:
    """The final norm and the projection to the vocabulary, for the rows that need logits only."""

    def __init__(
        self,
        ops: OpTable,
        weight: Weight,
        scratch: Scratch,
        *,
        norm: torch.Tensor,
        eps: float,
        max_logits: int,
        softcap: float = 0.0,
        bias: torch.Tensor | None = None,
    ) -> None:
        self._project = ops.bind(
            Linear(weight, norm=norm, eps=eps, softcap=softcap, bias=bias, label=LOGITS)
        )
        self._out = scratch.get("logits", weight.out_features, rows=max_logits)

    def forward(self, hidden: torch.Tensor, step: StepBuffers) -> torch.Tensor:
        """fp32 [max_logits, vocab_size]."""
        self._project(step.num_logits, hidden, self._out, step.logit_rows)
        return self._out
