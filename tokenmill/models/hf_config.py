"""Reads a model's configuration, which may come from anywhere, without trusting it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tokenmill.errors import CheckpointError

LIMITS = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_hidden_layers": 4096,
    "num_attention_heads": 65536,
    "num_key_value_heads": 65536,
    "head_dim": 16384,
}
"""No model of the next years comes near these; a larger value is a broken or hostile file."""

LAYER_TYPES = ("full_attention", "sliding_attention")

MAX_INTEGER = (1 << 31) - 1


class ConfigReader:
    """Values of config.json (or the same keys made from GGUF metadata), each checked as it is read.

    A null counts as absent. Every method raises CheckpointError naming the key when a value is absent
    and has no default, or is of the wrong type or out of range.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        where: str = "the model's configuration",
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """aliases: what this file calls a key, for keys that it names in its own way."""
        aliases = {key: own for key, own in (aliases or {}).items() if own in config}
        self._config = {**config, **{key: config[own] for key, own in aliases.items()}}
        self._where = where
        self._aliases = aliases

    def has(self, key: str) -> bool:
        """True if the key holds something other than null."""
        return self._config.get(key) is not None

    def error(self, key: str, problem: str) -> CheckpointError:
        """The error for a key, to be raised."""
        key = self._aliases.get(key, key)
        return CheckpointError(f"{self._where}: {key} {problem}; the file is damaged or not supported")

    def _value(self, key: str) -> Any:
        if not self.has(key):
            raise self.error(key, "is missing")
        return self._config[key]

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """An integer in [minimum, the key's limit]."""
        if default is not None and not self.has(key):
            return default
        value = self._value(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, f"is {value!r}, not a whole number")
        limit = LIMITS.get(key, MAX_INTEGER)
        if not minimum <= value <= limit:
            raise self.error(key, f"is {value}, outside {minimum} to {limit}")
        return value

    def number(self, key: str, default: float | None = None, *, minimum: float = 0.0) -> float:
        """A finite number greater than ``minimum``."""
        if default is not None and not self.has(key):
            return default
        value = self._value(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.error(key, f"is {value!r}, not a finite number")
        if value <= minimum:
            raise self.error(key, f"is {value}, but must be greater than {minimum:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        if not self.has(key):
            return default
        value = self._value(key)
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}, neither true nor false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        if default is not None and not self.has(key):
            return default
        value = self._value(key)
        if not isinstance(value, str):
            raise self.error(key, f"is {value!r}, not a string")
        return value

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of ``count`` positive finite numbers."""
        value = self._value(key)
        good = isinstance(value, list) and all(
            isinstance(v, int | float) and math.isfinite(v) and v > 0 for v in value
        )
        if not good or len(value) != count:
            raise self.error(key, f"must be a list of {count} positive numbers")
        return tuple(float(v) for v in value)

    def integers(self, key: str, count: int) -> tuple[int, ...]:
        """A list of ``count`` whole numbers."""
        value = self._value(key)
        if (
            not isinstance(value, list)
            or len(value) != count
            or any(not isinstance(v, int) for v in value)
        ):
            raise self.error(key, f"must be a list of {count} whole numbers")
        return tuple(int(v) for v in value)

    def windows(self, num_layers: int, is_sliding: Callable[[int], bool]) -> tuple[int, ...]:
        """For each layer how many tokens a token sees, 0 for all, from ``sliding_window``.

        ``layer_types`` says which layers slide; without it, the family's rule ``is_sliding`` does.
        """
        if not self.has("layer_types"):
            sliding = [is_sliding(index) for index in range(num_layers)]
        else:
            types = self._value("layer_types")
            if not isinstance(types, list) or len(types) != num_layers:
                raise self.error("layer_types", f"must be a list of {num_layers} layer types")
            if any(kind not in LAYER_TYPES for kind in types):
                raise self.error("layer_types", f"must hold only {', '.join(LAYER_TYPES)}")
            sliding = [kind == "sliding_attention" for kind in types]
        window = self.integer("sliding_window") if any(sliding) else 0
        return tuple(window if slides else 0 for slides in sliding)

    def section(self, key: str) -> ConfigReader:
        """A nested object."""
        value = self._value(key)
        if not isinstance(value, dict):
            raise self.error(key, "is not an object")
        return ConfigReader(value, f"{self._where}, {key}")

    def merged(self, other: Mapping[str, Any]) -> ConfigReader:
        """This reader with more values, for keys that it lacks."""
        return ConfigReader(
            {**other, **{k: v for k, v in self._config.items() if v is not None}},
            self._where,
            self._aliases,
        )
