"""Which form an answer must have: what the client asks of words, calls that have to be made, strict
arguments, and thoughts that come before."""

from __future__ import annotations

import json
from dataclasses import replace

from tokenmill.engine.structured_outputs import StructuredOutputs
from tokenmill.server.answer_format import AnswerFormat, Begun
from tokenmill.server.errors import ApiError
from tokenmill.server.protocol import ServingTokenizer
from tokenmill.server.tools.family import ANY_ARGUMENTS, Family, Mark
from tokenmill.server.tools.lark import quoted, regex, schema
from tokenmill.server.tools.request import ToolUse


def answer_form(
    form: AnswerFormat,
    begun: Begun,
    tools: ToolUse | None,
    asked: StructuredOutputs | None,
    tokenizer: ServingTokenizer,
    prompt: str,
) -> StructuredOutputs | None:
    """None if the model may write what it likes. Raises ApiError (400) for what can't be combined."""
    calls = tools is not None and (tools.must or asked or any(f.strict for f in tools.functions))
    if not calls and not asked:
        return None
    if not calls and not (form.has_channels and begun.header is None):
        assert asked is not None
        return _after_thoughts(asked, form, begun, prompt)

    def mark(text: str) -> str:
        token = tokenizer.token_to_id(text)
        special = token is not None and tokenizer.is_special(token)
        return f"<[{token}]>" if special else quoted(text)

    words = None if asked is None else _expression(asked)
    called = "tools"
    if tools is None or not calls:
        called = asked.called if asked is not None and asked.called else "structured_outputs"
        text = "\n".join(["start: words", form.family.words(words, (), mark)])
    else:
        text = _with_calls(form.family, tools, words, mark)
    value = StructuredOutputs(grammar=text, called=called)
    return _after_thoughts(value, form, begun, prompt)


def _with_calls(family: Family, tools: ToolUse, words: str | None, mark: Mark) -> str:
    """Calls, or words if there need be no calls."""
    functions = [
        # Arguments are enforced where there must be calls, and of strict functions.
        one if one.strict or tools.must else replace(one, parameters=ANY_ARGUMENTS)
        for one in tools.functions
    ]
    rules = ["start: calls"] if tools.must else ["start: calls | words"]
    if not tools.must:
        rules.append(family.words(words, functions, mark))
    if family.trigger is not None:
        trigger = mark(family.trigger)
        if tools.must or words is not None:
            rules.append(f"trigger: {trigger}")
        elif trigger.startswith("<"):
            rules.append(f"trigger: {family.any_words} {trigger}")
        else:
            rules.append(f"trigger[lazy]: {family.any_words} {trigger}")
    rules.append(family.grammar(functions, mark, parallel=tools.parallel))
    return "\n".join(rules)


def _after_thoughts(
    value: StructuredOutputs, form: AnswerFormat, begun: Begun, prompt: str
) -> StructuredOutputs:
    thoughts = form.reasoning
    if thoughts is None or value.after is not None:
        return value
    if begun.thinking:
        return replace(value, after=thoughts.end)
    if prompt.rstrip().endswith(thoughts.end):
        return value
    return replace(value, after=thoughts.end, unless_begun_by=thoughts.begin)


def _expression(asked: StructuredOutputs) -> str:
    """A form as part of a grammar."""
    if asked.json is not None:
        found = json.loads(str(asked.json))
        return schema(found if isinstance(found, dict) else {})
    if asked.json_object:
        return schema({"type": "object"})
    if asked.regex is not None:
        return regex(asked.regex)
    if asked.choice is not None:
        return "(" + " | ".join(quoted(text) for text in asked.choice) + ")"
    raise ApiError(
        "structured_outputs.grammar can't be combined with tools, or with a model that answers in "
        "channels; use json, regex or choice",
        param="structured_outputs",
    )
