"""Reads fields of a request body, checking the type of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from tokenmill.server.errors import ApiError

T = TypeVar("T")


class Fields:
    """A JSON object of a request. null counts as absent.

    Every method raises ApiError (400) that names the field if its value is of the wrong type.
    """

    def __init__(self, values: Any, where: str = "") -> None:
        if not isinstance(values, dict):
            raise ApiError(f"{where or 'the body'} must be an object", param=where or None)
        self._values: Mapping[str, Any] = values
        self._where = where

    def has(self, name: str) -> bool:
        """Whether the field is there, with a value other than null."""
        return self._values.get(name) is not None

    def any(self, name: str) -> Any:
        """The value as it is; None if absent."""
        return self._values.get(name)

    def wrong(self, name: str, problem: str) -> ApiError:
        """The error for a field, to be raised."""
        full = self._full(name)
        return ApiError(f"{full} {problem}", param=full)

    def text(self, name: str) -> str | None:
        """A string."""
        return self._typed(name, str, "a string")

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._typed(name, bool, "true or false")
        return default if value is None else value

    def integer(self, name: str, *, minimum: int | None = None) -> int | None:
        """A whole number."""
        value = self._values.get(name)
        if value is None:
            return None
        number = whole(value)
        if number is None:
            raise self.wrong(name, "must be a whole number")
        if minimum is not None and number < minimum:
            raise self.wrong(name, f"must be at least {minimum}, not {number}")
        return number

    def integers(self, name: str) -> list[int] | None:
        """A list of whole numbers that are not negative, such as token ids."""
        found = self._typed(name, list, "a list")
        if found is None:
            return None
        numbers = [number for value in found if (number := whole(value)) is not None and number >= 0]
        if len(numbers) != len(found):
            raise self.wrong(name, "must be a list of whole numbers that are not negative")
        return numbers

    def number(self, name: str) -> float | None:
        """A number."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong(name, "must be a number")
        return value

    def object(self, name: str) -> dict[str, Any] | None:
        """A JSON object."""
        return self._typed(name, dict, "an object")

    def array(self, name: str) -> list[Any] | None:
        """A JSON array."""
        return self._typed(name, list, "a list")

    def objects(self, name: str) -> list[Fields]:
        """A JSON array of objects; an empty one if it is absent."""
        values = enumerate(self.array(name) or ())
        return [Fields(value, f"{self._full(name)}[{number}]") for number, value in values]

    def section(self, name: str) -> Fields:
        """A nested object; an empty one if it is absent."""
        values = self._values.get(name)
        return self._inside(name, {} if values is None else values)

    def plus(self, **values: Any) -> Fields:
        """The same object with other values for some fields."""
        return Fields({**self._values, **values}, self._where)

    def refuse(
        self, names: Collection[str], allowed: Collection[Any] = (None, False, [], {}, "")
    ) -> None:
        """Refuse fields that would change the answer but can't be obeyed."""
        for name in names:
            value = self._values.get(name)
            # Python takes 0 for False and 1 for True.
            if not any(value == other and type(value) is type(other) for other in allowed):
                raise self.wrong(name, "is not supported; leave it out")

    def _inside(self, name: str, values: Any) -> Fields:
        return Fields(values, self._full(name))

    def _full(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def _typed(self, name: str, kind: type[T], what: str) -> T | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, kind):
            raise self.wrong(name, f"must be {what}")
        return value


def whole(value: Any) -> int | None:
    """The whole number that a JSON value is (3.0 is one); None if it is something else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
