"""Finds out what a reader of bodies reads, by running it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenmill.server.fields import Fields
from tokenmill.server.openapi.schemas import COUNT, FLAG, INTEGER, NUMBER, OBJECT, TEXT, Schema, array


@dataclass
class Seen:
    """What was read of one object.

    schemas: of each field, as far as the way it was read tells; {} where it was read as it is.
    sections: nested objects. refused: fields that must not be set. only: the values that a field
    may have.
    """

    schemas: dict[str, Schema] = field(default_factory=dict)
    sections: dict[str, Seen] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    only: dict[str, list[Any]] = field(default_factory=dict)


class ObservedFields(Fields):
    """Fields that note how they are read."""

    def __init__(self, values: Any, seen: Seen, where: str = "") -> None:
        super().__init__(values, where)
        self._seen = seen

    def any(self, name: str) -> Any:
        """See Fields."""
        self._note(name, {})
        return super().any(name)

    def text(self, name: str) -> str | None:
        """See Fields."""
        self._note(name, TEXT)
        return super().text(name)

    def flag(self, name: str, default: bool = False) -> bool:
        """See Fields."""
        self._note(name, FLAG)
        return super().flag(name, default)

    def integer(self, name: str, *, minimum: int | None = None) -> int | None:
        """See Fields."""
        self._note(name, INTEGER if minimum is None else {**INTEGER, "minimum": minimum})
        return super().integer(name, minimum=minimum)

    def integers(self, name: str) -> list[int] | None:
        """See Fields."""
        self._note(name, array(COUNT))
        return super().integers(name)

    def number(self, name: str) -> float | None:
        """See Fields."""
        self._note(name, NUMBER)
        return super().number(name)

    def object(self, name: str) -> dict[str, Any] | None:
        """See Fields."""
        self._note(name, OBJECT)
        return super().object(name)

    def array(self, name: str) -> list[Any] | None:
        """See Fields."""
        self._note(name, {"type": "array"})
        return super().array(name)

    def refuse(
        self, names: Collection[str], allowed: Collection[Any] = (None, False, [], {}, "")
    ) -> None:
        """See Fields."""
        # What is allowed of every refused field says the same as leaving it out.
        meant = [value for value in allowed if value and not isinstance(value, int)]
        if meant:
            self._seen.only |= {name: list(allowed) for name in names}
        else:
            self._seen.refused |= set(names)
        super().refuse(names, allowed)

    def _inside(self, name: str, values: Any) -> Fields:
        self._note(name, OBJECT)
        seen = self._seen.sections.setdefault(name, Seen())
        return ObservedFields(values, seen, self._full(name))

    def _note(self, name: str, schema: Schema) -> None:
        if not self._seen.schemas.get(name):
            self._seen.schemas[name] = schema


def observe(read: Callable[[Fields], object], examples: Sequence[Mapping[str, Any]]) -> Seen:
    """What ``read`` reads of bodies that it accepts."""
    seen = Seen()
    for example in examples:
        read(ObservedFields(dict(example), seen))
    return seen
