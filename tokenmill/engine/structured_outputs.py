"""What form an answer has to have; names are those of vLLM. Imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenmill.errors import RequestError

MAX_SCHEMA_CHARS = 128_000
MAX_REGEX_CHARS = 16_000
MAX_CHOICES = 4096
MAX_SCHEMA_DEPTH = 64
"""Objects within objects of a schema."""

FORMS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True)
class StructuredOutputs:
    """One of the forms. Raises RequestError, naming the field, if a value is invalid.

    json: a JSON Schema, as text or as an object. regex: the whole answer matches it. choice: the
    answer is one of these texts. grammar: a context-free grammar in the notation of Lark or of GBNF.
    json_object: any JSON object. after: the form begins only once the answer holds this text (the end
    of the reasoning of models that think first); None: at once. unless_begun_by: a special token; if
    there is one, the form waits for ``after`` only in an answer that this token begins. called: what
    errors call the form, if not by its field.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    after: str | None = None
    unless_begun_by: str | None = None
    called: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        given = [name for name in FORMS if getattr(self, name) not in (None, False)]
        if self.json is False:
            raise RequestError("structured_outputs.json is false, which no answer can meet")
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RequestError(
                f"structured_outputs takes exactly one of {', '.join(FORMS)}, but there is {found}"
            )
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        for name, limit in (("regex", MAX_REGEX_CHARS), ("grammar", MAX_SCHEMA_CHARS)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not 0 < len(value) <= limit):
                raise RequestError(
                    f"structured_outputs.{name} must be a text of at most {limit} characters"
                )
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        if self.json_object not in (None, False, True):
            raise RequestError("structured_outputs.json_object must be true or left out")
        for name in ("after", "unless_begun_by"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise RequestError(f"structured_outputs.{name} must be a text that is not empty")
        if self.unless_begun_by is not None and self.after is None:
            raise RequestError("structured_outputs.unless_begun_by needs after")

    @classmethod
    def read(cls, value: Any) -> StructuredOutputs:
        """From a mapping of what callers may say: one of the forms, and ``after``.

        Raises RequestError.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or not value.keys() <= {*FORMS, "after"}:
            raise RequestError(f"structured_outputs must be an object with some of {', '.join(FORMS)}")
        return cls(**value)


def _schema_text(schema: str | Mapping[str, Any] | bool) -> str:
    """The schema as canonical JSON."""
    if isinstance(schema, str):
        if len(schema) > MAX_SCHEMA_CHARS:
            raise RequestError(f"the JSON schema has more than {MAX_SCHEMA_CHARS} characters")
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the JSON schema is no JSON: {error}") from None
    if not isinstance(schema, Mapping) and schema is not True:
        raise RequestError("a JSON schema must be an object")
    _check_depth(schema, MAX_SCHEMA_DEPTH)
    try:
        text = json.dumps(schema, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise RequestError(f"the JSON schema is no JSON: {error}") from None
    if len(text) > MAX_SCHEMA_CHARS:
        raise RequestError(f"the JSON schema has more than {MAX_SCHEMA_CHARS} characters")
    return text


def _check_depth(value: Any, left: int) -> None:
    if left == 0:
        raise RequestError(f"the JSON schema is nested more than {MAX_SCHEMA_DEPTH} levels deep")
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for item in inner:
        if isinstance(item, Mapping | list):
            _check_depth(item, left - 1)


def _choices(choice: Any) -> tuple[str, ...]:
    good = (
        isinstance(choice, Sequence) and not isinstance(choice, str) and 0 < len(choice) <= MAX_CHOICES
    )
    if not good or not all(isinstance(text, str) and text for text in choice):
        raise RequestError(
            f"structured_outputs.choice must be a list of 1 to {MAX_CHOICES} texts that are not empty"
        )
    texts = tuple(choice)
    if sum(map(len, texts)) > MAX_SCHEMA_CHARS:
        raise RequestError(f"structured_outputs.choice has more than {MAX_SCHEMA_CHARS} characters")
    return texts
