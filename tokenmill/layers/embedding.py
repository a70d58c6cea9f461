"""The two ends of a decoder: token ids to hidden states, and hidden states to logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenmill.engine.step import StepBuffers
from tokenmill.layers.scratch import Scratch
from tokenmill.ops.table import LOGITS, Embed, LayerNorm, Linear, OpTable, Weight


@dataclass(frozen=True)
class EmbeddingExtras:
    """What only some families add to the embedding of tokens.

    positions: learned position embeddings, a row for each position (GPT-2).
    norm, norm_bias: a LayerNorm of the sum, fp32 [hidden] (Bloom).
    """

    positions: Weight | None = None
    norm: torch.Tensor | None = None
    norm_bias: torch.Tensor | None = None


class Embedding:
    """Looks tokens up, times ``scale``; the result, with the extras, starts the residual stream."""

    def __init__(
        self,
        ops: OpTable,
        weight: Weight,
        scratch: Scratch,
        scale: float = 1.0,
        *,
        extras: EmbeddingExtras | None = None,
        eps: float = 0.0,
    ) -> None:
        extras = extras or EmbeddingExtras()
        self._embed = ops.bind(Embed(weight, scale))
        self._positions = self._norm = None
        if extras.positions is not None:
            self._positions = ops.bind(Embed(extras.positions, accumulate=True))
        if extras.norm is not None:
            self._norm = ops.bind(LayerNorm(extras.norm, eps, extras.norm_bias))
        self._out = scratch.get("hidden", weight.in_features)

    def forward(self, step: StepBuffers) -> torch.Tensor:
        """fp32 [max_tokens, hidden_size]."""
        rows = step.num_tokens
        self._embed(rows, step.token_ids, self._out)
        if self._positions is not None:
            self._positions(rows, step.positions, self._out)
        if self._norm is not None:
            self._norm(rows, self._out, self._out)
        return self._out


class LMHead:
    """The final norm and the projection to the vocabulary, for the rows that need logits only.

    layer_norm: the norm is a LayerNorm, not an RMSNorm. scale: multiplies the logits.
    """

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
        norm_bias: torch.Tensor | None = None,
        layer_norm: bool = False,
        scale: float = 1.0,
    ) -> None:
        self._project = ops.bind(
            Linear(
                weight,
                norm=norm,
                norm_bias=norm_bias,
                centre=layer_norm,
                eps=eps,
                softcap=softcap,
                bias=bias,
                scale=scale,
                label=LOGITS,
            )
        )
        self._out = scratch.get("logits", weight.out_features, rows=max_logits)

    def forward(self, hidden: torch.Tensor, step: StepBuffers) -> torch.Tensor:
        """fp32 [max_logits, vocab_size]."""
        self._project(step.num_logits, hidden, self._out, step.logit_rows)
        return self._out
