"""How much reading and arithmetic one token costs a model: what its ceilings are computed from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from tokenmill.config import Quantization
from tokenmill.weights.tensor import RawTensor

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"

QUANTISED_BYTES: dict[Quantization, float] = {"int8": 34 / 32, "int4": 20 / 32}
"""Bytes of a weight after quantising at load (blocks of 32 weights)."""


class Weights(Protocol):
    """What is needed of a checkpoint."""

    def names(self) -> Collection[str]:
        """The tensors' names."""
        ...

    def get(self, name: str) -> RawTensor:
        """One tensor."""
        ...


@dataclass(frozen=True)
class TokenWork:
    """weight_bytes: weights read to decode one token. prefill_ops: operations of one prompt token's
    matrix products (a multiply-add counts as two); the output matrix is left out, since only the last
    token of a prompt needs it. quantised: whether most of them multiply quantised weights.
    """

    weight_bytes: float
    prefill_ops: float
    quantised: bool


def token_work(weights: Weights, quantization: Quantization | None) -> TokenWork:
    """From a checkpoint's matrices. Attention's own work, which grows with the text, is not counted."""
    names = weights.names()
    tied = not any(name.endswith(LM_HEAD) for name in names)
    num_bytes = ops = quantised_ops = 0.0
    for name in names:
        raw = weights.get(name)
        if len(raw.shape) != 2:
            continue
        embedding, head = name.endswith(EMBEDDING.partition(".")[2]), name.endswith(LM_HEAD)
        if embedding and not tied:
            continue  # one row is read
        elements = raw.shape[0] * raw.shape[1]
        plain = raw.format in ("F32", "F16", "BF16")
        if quantization is not None and plain:
            precise = embedding or head
            num_bytes += elements * QUANTISED_BYTES["int8" if precise else quantization]
        else:
            num_bytes += raw.data.numel()
        if not embedding and not head:
            ops += 2.0 * elements
            if not plain or quantization is not None:
                quantised_ops += 2.0 * elements
    return TokenWork(num_bytes, ops, quantised_ops > ops / 2)
