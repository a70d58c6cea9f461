"""Which provider multiplies by a matrix, where several can: by measurement.

Unlike the variants of the native kernels, providers round differently. So one is chosen for each shape
and format of a matrix, for batches of every width: what a request gets doesn't depend on the batch that
it is in, and not on the process either, because choices are kept (see ``ops/choice.py``) and looked up
at the next load.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, runtime_checkable

import torch

from tokenmill.ops.choice import GAIN, MEASURED_AT, NUM_CHOICES, Measure
from tokenmill.ops.table import Linear, Provider, RmsNorm, Weight
from tokenmill.weights.tensor import RawTensor

log = logging.getLogger("tokenmill.ops")

ROUNDS, RUNS = 3, 3
OTHER_OPERATORS = 6
"""As many as there are in a layer beside one product."""

SETTLE_S = 0.01
"""Between measurements: threads of the one before stop waiting for more work."""


class Program(Protocol):
    """Recorded operators."""

    def run(self) -> None:
        """Run them."""
        ...


@runtime_checkable
class Records(Protocol):
    """A provider that can turn operators into one call."""

    def record(self, forward: Callable[[], object]) -> Program:
        """Notes what ``forward`` calls, without running it."""
        ...


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


@dataclass
class Rivals:
    """Providers of Linear alone, and what decides whether one of them gets a matrix."""

    providers: list[Provider]
    choices: RivalChoices

    def pack(self, preferred: Provider, segments: Sequence[RawTensor]) -> Weight:
        """The matrix, packed by the preferred provider or by a rival that is faster with it."""
        contenders = {p.name: p for p in (preferred, *self._willing(segments))}
        if len(contenders) == 1:
            return preferred.pack(segments)
        packed: dict[str, Linear] = {}

        def measure(name: str, rows: int) -> float:
            if name not in packed:
                packed[name] = Linear(contenders[name].pack(segments))
            return seconds_of(step_of(contenders[name], preferred, packed[name], rows))

        rows, formats = sum(s.shape[0] for s in segments), [s.format for s in segments]
        matrix = _matrix_name(rows, segments[0].shape[1], formats, list(contenders))
        try:
            name = self.choices.choose(matrix, list(contenders), measure)
            return packed[name].weight if name in packed else contenders[name].pack(segments)
        except ProviderFailed as failure:
            log.warning("%s is not used: %s", failure.provider, failure)
            self.providers = [p for p in self.providers if p.name != failure.provider]
            return self.pack(preferred, segments)

    def stands(self, weight: Weight) -> bool:
        """Whether a matrix that was packed at an earlier start would go to the same provider now.

        False also where that has to be measured first.
        """
        rows, cols = weight.out_features, weight.in_features
        rivals = self._willing([RawTensor("", f, (rows, cols), torch.empty(0)) for f in weight.formats])
        if not rivals:
            return True
        names = [weight.provider, *(p.name for p in rivals)]
        matrix = _matrix_name(rows, cols, weight.formats, names)
        if self.choices.look_up(matrix, names) != weight.provider:
            return False
        self.choices.used[matrix] = weight.provider
        return True

    def _willing(self, segments: Sequence[RawTensor]) -> list[Provider]:
        return [p for p in self.providers if p.why_not_pack(segments) is None]


def _matrix_name(rows: int, cols: int, formats: Sequence[str], providers: Sequence[str]) -> str:
    """What choices call a matrix."""
    shown = "+".join(dict.fromkeys(formats))
    return f"matrix {rows}x{cols} {shown} ({' or '.join(providers)})"


def step_of(provider: Provider, preferred: Provider, params: Linear, rows: int) -> Callable[[], None]:
    """A part of a forward step: the product, among other operators of the preferred provider.

    That of the preferred provider is recorded, if it can be. So a rival pays for what a step loses with
    it: being one native call, and threads that all belong to one pool.
    """
    width = params.weight.in_features
    count = torch.tensor([rows], dtype=torch.int32)
    x, out = torch.full((rows, width), 0.5), torch.empty(rows, params.weight.out_features)
    product = provider.bind(params)
    norm, normalised = preferred.bind(RmsNorm(torch.ones(width), 1e-6)), torch.empty(rows, width)

    def forward() -> None:
        product(count, x, out)
        for _ in range(OTHER_OPERATORS):
            norm(count, x, normalised)

    if provider is not preferred or not isinstance(preferred, Records):
        return forward
    program = preferred.record(forward)
    return partial(_replay, program, forward)


def _replay(program: Program, forward: Callable[[], None]) -> None:
    """Runs what was recorded. forward: holds the buffers; the program knows only their addresses."""
    program.run()


def seconds_of(step: Callable[[], None]) -> float:
    """The best of a few times in a row."""
    best = math.inf
    for _ in range(RUNS):
        started = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - started)
    return best
