"""Which compiled variant of a kernel runs, by measurement.

The variants of the native kernels agree to the bit, so the fastest may be chosen for each operator,
shape and width of batch without changing any result. What was measured is kept in a file for each CPU,
version and number of threads, can be exported and pinned, and is taken up again at the next start.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenmill.errors import ConfigError

log = logging.getLogger("tokenmill.ops")

WIDTHS = (1, 8, 64)
"""Rows up to which the first, second and third choice hold; the last holds beyond."""

MEASURED_AT = (1, 6, 32, 128)
"""Rows that are measured for each choice."""

NUM_CHOICES = len(MEASURED_AT)

GAIN = 0.95
"""A variant displaces the preferred one if it takes less than this share of its time."""

Measure = Callable[[str, int], float]
"""Seconds that a variant takes for a number of rows."""


@dataclass
class KernelChoices:
    """Chooses among variants, the preferred one first.

    known: by operator and shape, the variant for each of NUM_CHOICES widths. works: whether a variant
    passes its self-check here. measures: whether to measure what is not known.
    """

    variants: Sequence[str]
    works: Callable[[str], bool]
    known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    measures: bool = True
    used: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What was chosen for this model."""
    measured: int = 0
    """How many choices were measured now."""

    def choose(self, operator: str, measure: Measure, most_rows: int) -> tuple[str, ...]:
        """The variant for each width. most_rows: rows that the operator will ever have."""
        found = self.used.get(operator) or self._known(operator)
        if found is None:
            found = (self.variants[0],) * NUM_CHOICES
            usable = [name for name in self.variants if self.measures and self.works(name)]
            if len(usable) > 1:
                found = tuple(self._fastest(usable, measure, n, most_rows) for n in MEASURED_AT)
                self.measured += 1
                self.known[operator] = found
        self.used[operator] = found
        return found

    def _known(self, operator: str) -> tuple[str, ...] | None:
        found = self.known.get(operator)
        if found is None or not all(name in self.variants and self.works(name) for name in found):
            return None
        return found

    @staticmethod
    def _fastest(names: Sequence[str], measure: Measure, rows: int, most_rows: int) -> str:
        if rows > most_rows:
            return names[0]
        times = dict.fromkeys(names, float("inf"))
        for _ in range(3):  # in turns, so that what else happens touches all
            for name in names:
                times[name] = min(times[name], measure(name, rows))
        best = min(names, key=lambda name: times[name])
        return best if times[best] < GAIN * times[names[0]] else names[0]


def read_choices(path: Path) -> dict[str, tuple[str, ...]]:
    """Choices that were exported to a file. Raises ConfigError if it does not hold any."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"operator choices can't be read from {path}: {error}") from None
    choices = _valid(found.get("choices") if isinstance(found, dict) else None)
    if choices is None:
        raise ConfigError(
            f"{path} holds no choices; 'tokenmill info MODEL --export-choices FILE' writes them"
        )
    return choices


def write_choices(path: Path, choices: Mapping[str, tuple[str, ...]]) -> None:
    """Write choices for ``read_choices``. Raises OSError."""
    _write(path, {"widths": list(WIDTHS), "choices": dict(sorted(choices.items()))})


class ChoiceFile:
    """What was measured on this machine before. machine: CPU, version and threads, in one text."""

    def __init__(self, path: Path, machine: str) -> None:
        self._path = path
        self._machine = machine

    def load(self) -> dict[str, tuple[str, ...]]:
        """Nothing if there is no file, or if it can't be understood."""
        return _valid(self._all().get(self._machine)) or {}

    def save(self, choices: Mapping[str, tuple[str, ...]]) -> None:
        """Keep them beside those of other machines; a full disk is no error."""
        try:
            _write(self._path, {**self._all(), self._machine: dict(sorted(choices.items()))})
        except OSError as error:
            log.warning("measured choices are not kept: %s", error)

    def _all(self) -> dict[str, Any]:
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _valid(found: Any) -> dict[str, tuple[str, ...]] | None:
    if not isinstance(found, dict):
        return None
    for names in found.values():
        if not isinstance(names, list) or len(names) != NUM_CHOICES:
            return None
        if not all(isinstance(name, str) for name in names):
            return None
    return {operator: tuple(names) for operator, names in found.items()}


def _write(path: Path, value: Any) -> None:
    """Replace the file in one go, so that nobody reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(value, file, indent=1)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
