"""One vector for a whole prompt, from the final hidden states of its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Literal

import torch

from tokenmill.errors import RequestError

Pooling = Literal["last", "mean"]
POOLINGS: tuple[Pooling, ...] = ("last", "mean")


@dataclass(frozen=True)
class PoolingParams:
    """How a prompt becomes a vector.

    pooling: the last token's hidden state, or the mean of all; None is what the model is made for.
    dimensions: keep this many of the first numbers, as models trained for it allow (Matryoshka
    representations, arXiv:2205.13147); None keeps all. normalize: scale to length 1, after that.

    Raises RequestError if a value makes no sense.
    """

    pooling: Pooling | None = None
    dimensions: int | None = None
    normalize: bool = True

    def __post_init__(self) -> None:
        if self.pooling not in (None, *POOLINGS):
            raise RequestError(f"pooling must be one of {', '.join(POOLINGS)}, not {self.pooling!r}")
        if self.dimensions is not None and self.dimensions < 1:
            raise RequestError(f"dimensions must be at least 1, not {self.dimensions}")


@dataclass(frozen=True)
class PoolingTask:
    """``PoolingParams`` with the model's own pooling filled in."""

    pooling: Pooling
    dimensions: int | None
    normalize: bool

    @property
    def needs_every_token(self) -> bool:
        """Whether the hidden states of all tokens count, so that none may come from the cache."""
        return self.pooling == "mean"


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Of the angle between two vectors of the same size; 0 if one of them is all zeros."""
    length = math.hypot(*a) * math.hypot(*b)
    return math.fsum(map(mul, a, b)) / length if length else 0.0


class PoolingState:
    """What has been seen of one prompt's hidden states."""

    def __init__(self, task: PoolingTask) -> None:
        self.task = task
        self._total: torch.Tensor | None = None
        self._count = 0

    def rows_wanted(self, count: int, *, ends: bool) -> int:
        """How many of the last ``count`` tokens' rows count; ends: the prompt ends with them."""
        return count if self.task.needs_every_token else int(ends)

    def add(self, rows: torch.Tensor) -> None:
        """Take in hidden states, fp32 [n, hidden_size], in order of position."""
        if self._total is None:
            self._total = torch.zeros(rows.shape[1], dtype=torch.float64)
        # Row by row, so that the order of the sum is that of the prompt however it was cut into steps.
        for row in rows:
            self._total += row
        self._count += rows.shape[0]

    def restart(self) -> None:
        """Forget everything: the prompt will be computed again."""
        self._total = None
        self._count = 0

    def result(self) -> list[float]:
        """The vector: fp32 values."""
        assert self._total is not None
        vector = (self._total / self._count)[: self.task.dimensions]
        if self.task.normalize:
            length = torch.linalg.vector_norm(vector)
            if length > 0:
                vector = vector / length
        values: list[float] = vector.float().tolist()
        return values
