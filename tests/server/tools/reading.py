"""Reads answers in pieces, and describes what was found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tokenmill.server.answer_format import AnswerFormat, AnswerReader, Begun
from tokenmill.server.tools.family import Function, Functions
from tokenmill.server.tools.output import Arguments, Call, Part, Said, Thought

WEATHER = Function(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "where": {"type": "object"},
            "exact": {"type": ["boolean", "null"]},
        },
        "required": ["city"],
    },
)
TIME = Function("time.now", {"type": "object", "properties": {}})
FUNCTIONS: Functions = {"get_weather": WEATHER, "time.now": TIME}


def joined(parts: Iterable[Part]) -> list[Any]:
    """Parts with neighbours of a kind put together: texts as they are, thoughts as {"thought": text},
    calls as (name, arguments) or (name, arguments, id)."""
    found: list[Any] = []
    last: Part | None = None
    for part in parts:
        if isinstance(part, Call):
            found.append((part.name, "", part.call_id) if part.call_id else (part.name, ""))
        elif isinstance(part, Arguments):
            name, text, *rest = found[-1]
            found[-1] = (name, text + part.text, *rest)
        elif isinstance(part, Said):
            if isinstance(last, Said):
                found[-1] += part.text
            else:
                found.append(part.text)
        elif isinstance(last, Thought):
            found[-1]["thought"] += part.text
        else:
            found.append({"thought": part.text})
        last = part
    return found


def read(
    form: AnswerFormat,
    pieces: Iterable[str],
    begun: Begun | None = None,
    functions: Functions | None = FUNCTIONS,
) -> list[Part]:
    reader = AnswerReader(form, begun or Begun(), functions)
    parts = [part for piece in pieces for part in reader.push(piece)]
    return parts + reader.finish()


def divisions(text: str) -> Iterator[list[str]]:
    """The text in two pieces, wherever it can be cut, and letter by letter."""
    yield list(text)
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
