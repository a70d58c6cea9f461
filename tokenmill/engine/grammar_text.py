"""Forms of answers in the notation of llguidance. Imports no torch: a small process uses it, too."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from tokenmill.engine.structured_outputs import StructuredOutputs

P = ParamSpec("P")
R = TypeVar("R")

MAX_MESSAGE = 400
JSON_SPACE = r"(\n[ \t]{0,40}| )?"
"""One space, or a line end and indentation: without a bound, models may go on with space for ever."""


class GrammarError(Exception):
    """The library refuses a form, or fails over it."""


def grammar_limits() -> LLParserLimits:
    """Effort that a grammar may cost; beyond, it is refused, or fails its own answer."""
    return LLParserLimits(
        max_items_in_row=20_000,
        step_max_items=400_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        max_lexer_states=250_000,
        max_grammar_size=500_000,
    )


def guarded(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """The result of a call of the library, whose errors and panics become GrammarError."""
    try:
        return call(*args, **kwargs)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # panics of Rust code are no Exception
        raise GrammarError(summary(str(error))) from None


def summary(message: str) -> str:
    """The part of an error that a caller can act on."""
    plain = message.split("<state>", 1)[0]
    return " ".join(plain.split())[:MAX_MESSAGE] or "it is invalid"


def grammar_of(form: StructuredOutputs) -> str:
    """A form in llguidance's own notation. Raises GrammarError."""
    return guarded(_grammar_of, form)


def _grammar_of(form: StructuredOutputs) -> str:
    if form.json is not None:
        assert isinstance(form.json, str)
        return _json_schema(form.json)
    if form.json_object:
        return _json_schema('{"type":"object"}')
    if form.regex is not None:
        return LLMatcher.grammar_from_regex(form.regex)
    if form.choice is not None:
        # As one terminal, so that the number of choices costs little.
        texts = " | ".join(json.dumps(text) for text in form.choice)
        return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {texts}")
    assert form.grammar is not None
    if re.search(r"^[ \t]*root[ \t]*::=", form.grammar, re.MULTILINE):
        return LLMatcher.grammar_from_lark(any_to_lark(form.grammar))
    return LLMatcher.grammar_from_lark(form.grammar)


def _json_schema(schema: str) -> str:
    # oneOf is anyOf here: that exactly one holds can't be told by what may come next.
    return LLMatcher.grammar_from_json_schema(
        schema, {"whitespace_pattern": JSON_SPACE, "coerce_one_of": True}
    )
