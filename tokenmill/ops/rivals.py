"""Which provider multiplies by a matrix, where several can: by measurement.

Unlike the variants of the native kernels, providers round differently. So one is chosen for each shape
and format of a matrix, for batches of every width: what a request gets doesn't depend on the batch that
it is in, and not on the process either, because choices are kept (see ``ops/choice.py``) and looked up
at the next load.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from tokenmill.ops.choice import GAIN, MEASURED_AT, NUM_CHOICES, Measure

if TYPE_CHECKING:
    from tokenmill.ops.table import Linear

ROUNDS = 3
SETTLE_S = 0.01
"""Between measurements: threads of the one before stop waiting for more work."""


class ProviderFailed(Exception):
    """A provider that was taken for usable isn't; another takes its place. provider: its name."""

    def __init__(self, provider: str, reason: str) -> None:
        super().__init__(reason)
        self.provider = provider


@dataclass
class RivalChoices:
    """Chooses among providers, the preferred one first.

    known: by matrix, the provider's name for each width of KernelChoices, all of them the same; the two
    share the dictionary and its file. measures: whether to measure what is not known.
    """

    known: dict[str, tuple[str, ...]]
    measures: bool = True
    used: dict[str, str] = field(default_factory=dict)
    """What was chosen for this model."""
    measured: int = 0
    """How many choices were measured now."""

    def look_up(self, matrix: str, names: Sequence[str]) -> str | None:
        """The provider that was chosen before; None if a measurement is due."""
        found = self.known.get(matrix, ())
        if len(set(found)) == 1 and found[0] in names:
            return found[0]
        return None if self.measures else names[0]

    def choose(self, matrix: str, names: Sequence[str], measure: Measure) -> str:
        """The provider of a matrix, for every width.

        measure: seconds that a provider takes for a number of rows.
        """
        chosen = self.look_up(matrix, names)
        if chosen is None:
            chosen = self._fastest(names, measure)
            self.known[matrix] = (chosen,) * NUM_CHOICES
            self.measured += 1
        self.used[matrix] = chosen
        return chosen

    @staticmethod
    def _fastest(names: Sequence[str], measure: Measure) -> str:
        """The least geometric mean of times over the measured widths; ties go to the preferred."""
        costs = dict.fromkeys(names, 0.0)
        for rows in MEASURED_AT:
            best = dict.fromkeys(names, math.inf)
            for _ in range(ROUNDS):  # in turns, so that what else happens touches all
                for name in names:
                    time.sleep(SETTLE_S)
                    best[name] = min(best[name], measure(name, rows))
            for name in names:
                costs[name] += math.log(max(best[name], 1e-9)) / len(MEASURED_AT)
        fastest = min(names, key=lambda name: costs[name])
        return fastest if costs[fastest] < costs[names[0]] + math.log(GAIN) else names[0]


def time_linear(params: Linear, run: Callable[..., None], rows: int) -> float:
    """Seconds of one bound matrix product over so many rows, the better of two."""
    count = torch.tensor([rows], dtype=torch.int32)
    x, out = (
        torch.full((rows, params.weight.in_features), 0.5),
        torch.empty(rows, params.weight.out_features),
    )
    best = math.inf
    for _ in range(2):
        started = time.perf_counter()
        run(count, x, out)
        best = min(best, time.perf_counter() - started)
    return best
