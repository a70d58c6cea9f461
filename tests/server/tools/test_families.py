"""Which family a chat template tells of."""

from __future__ import annotations

import pytest

from tokenmill.errors import ConfigError
from tokenmill.server.answer_format import answer_format
from tokenmill.server.tools.families import NAMES, choose_family

# What templates of the models have of calls, in a few words each.
TEMPLATES = {
    "hermes": r"'<tool_call>\n{\"name\": \"' + tool_call.name + '\", \"arguments\": '",
    "qwen3_coder": r"'\n<tool_call>\n<function=' + name + '>\n<parameter=' + key + '>\n'",
    "glm": r"<tool_call>{{ name }} <arg_key>{{ k }}</arg_key> <arg_value>{{ v }}</arg_value>",
    "llama3_json": 'Respond in the format {"name": function name, "parameters": dictionary of argument '
    'name and its value}. "<|python_tag|>"',
    "pythonic": "in the format [func_name1(params_name1=params_value1, params_name2=params_value2)]",
    "mistral": '"[TOOL_CALLS]" + name + "[ARGS]" + arguments',
    "deepseek": r"'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + '```json'",
    "kimi_k2": "<|tool_calls_section_begin|> <|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>",
    "harmony": '"<|start|>assistant<|channel|>final<|message|>" + content + "<|end|>"',
}


@pytest.mark.parametrize(("name", "template"), TEMPLATES.items())
def test_templates_tell_the_family(name: str, template: str) -> None:
    assert choose_family({"default": template}).name == name
    assert choose_family({"default": "plain", "tool_use": template}).name == name
    assert choose_family({"default": "plain"}, name).name == name


def test_every_family_is_known_by_a_template() -> None:
    assert sorted(TEMPLATES) == sorted(NAMES)


def test_templates_that_tell_nothing() -> None:
    assert choose_family({}).name == "hermes"
    assert choose_family({"default": TEMPLATES["glm"]}, "hermes").name == "hermes"
    with pytest.raises(ConfigError, match="no tool parser 'other'"):
        choose_family({}, "other")


@pytest.mark.parametrize(
    ("template", "begin"),
    [
        ("{%- if '</think>' in content %}", "<think>"),
        ("'[THINK]' + block + '[/THINK]'", "[THINK]"),
        ("<seed:think>", "<seed:think>"),
        ("nothing", None),
        (TEMPLATES["harmony"], None),
    ],
)
def test_templates_tell_of_thoughts(template: str, begin: str | None) -> None:
    reasoning = answer_format({"default": template}).reasoning
    assert (None if reasoning is None else reasoning.begin) == begin


def test_ids_of_calls() -> None:
    families = {name: choose_family({}, name) for name in NAMES}
    assert all(family.call_id() != family.call_id() for family in families.values())
    # Mistral's templates take no others.
    assert len(families["mistral"].call_id()) == 9
    assert families["mistral"].call_id().isalnum()
