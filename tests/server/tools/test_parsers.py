"""Every family's calls, whole, in pieces, cut off and malformed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.tools.reading import FUNCTIONS, divisions, joined, read
from tokenmill.server.answer_format import AnswerFormat, AnswerReader, Begun
from tokenmill.server.reasoning import Reasoning
from tokenmill.server.tools.deepseek import DeepSeek
from tokenmill.server.tools.family import Family
from tokenmill.server.tools.glm import Glm
from tokenmill.server.tools.harmony import Harmony
from tokenmill.server.tools.hermes import Hermes
from tokenmill.server.tools.kimi import Kimi
from tokenmill.server.tools.llama_json import LlamaJson
from tokenmill.server.tools.llama_pythonic import LlamaPythonic
from tokenmill.server.tools.mistral import Mistral
from tokenmill.server.tools.output import Part
from tokenmill.server.tools.qwen3_coder import Qwen3Coder

ROME = '{"city": "Rome", "days": 2}'
Q = "get_weather"

CASES: list[tuple[type[Family], str, list[Any]]] = [
    # Hermes
    (Hermes, " Just words. \n", [" Just words. \n"]),
    (Hermes, "a < b, <tool> and <tool_", ["a < b, <tool> and <tool_"]),
    (
        Hermes,
        f'Let me see.\n<tool_call>\n{{"name": "{Q}", "arguments": {ROME}}}\n</tool_call>\n',
        ["Let me see.", (Q, ROME)],
    ),
    (
        Hermes,
        f'<tool_call>{{"arguments":{ROME},"name":"{Q}"}}</tool_call>'
        '<tool_call>\n{"name": "time.now"}\n</tool_call> Done.',
        [(Q, ROME), ("time.now", "{}"), "Done."],
    ),
    (
        Hermes,
        '<tool_call>\n[{"name": "time.now", "arguments": {}}, {"name": "x", "arguments": {"a": "}"}}]\n'
        "</tool_call>",
        [("time.now", "{}"), ("x", '{"a": "}"}')],
    ),
    (
        Hermes,
        '<tool_call>\n{"name": "a", "arguments": {}}\n{"name": "b", "arguments": {}}\n</tool_call>',
        [("a", "{}"), ("b", "{}")],
    ),
    (
        Hermes,
        '<tool_call>{"name": "a", "arguments": "{\\"x\\": \\"\\\\\\"}\\"}"}</tool_call>',
        [("a", '{"x": "\\"}"}')],
    ),
    (
        Hermes,
        '<tool_call>{"type": "function", "function": {"name": "a", "arguments": null}, "z": [1]}'
        "</tool_call>",
        [("a", "{}")],
    ),
    (Hermes, "Write <tool_call> like this.", ["Write <tool_call> like this."]),
    (Hermes, '<tool_call>\n{"nam', ['<tool_call>\n{"nam']),
    (Hermes, '<tool_call>\n{"no": 1}\n</tool_call>', ['<tool_call>\n{"no": 1}\n</tool_call>']),
    (Hermes, '<tool_call>{"name": "a", "arguments": {"x": "4', [("a", '{"x": "4')]),
    (
        Hermes,
        '<tool_call>{"name": "a", "arguments": {"x": 4}, oh}</tool_call>!',
        [("a", '{"x": 4}'), "!"],
    ),
    # Hermes without its tags
    (
        Hermes,
        f'{{"name": "{Q}", "arguments": {ROME}}}\n{{"name": "time.now"}}',
        [(Q, ROME), ("time.now", "{}")],
    ),
    (Hermes, f'```json\n{{"name": "{Q}", "arguments": {ROME}}}\n```\nSo.', [(Q, ROME), "So."]),
    (Hermes, f'<tools>\n{{"name": "{Q}", "arguments": {ROME}}}\n</tools>', [(Q, ROME)]),
    (Hermes, '{"name": "Bob", "age": 3}', ['{"name": "Bob", "age": 3}']),
    (Hermes, '```json\n{"a": 1}\n```\n', ['```json\n{"a": 1}\n```\n']),
    (Hermes, "```python\n1\n```", ["```python\n1\n```"]),
    (Hermes, f'{{"name": "{Q}", "arguments": {{"city": "Ro', [(Q, '{"city": "Ro')]),
    # Llama 3
    (LlamaJson, f'{{"name": "{Q}", "parameters": {ROME}}}', [(Q, ROME)]),
    (LlamaJson, f'\n<|python_tag|>{{"name": "{Q}", "parameters": {ROME}}}', [(Q, ROME)]),
    (
        LlamaJson,
        f'{{"name": "{Q}", "parameters": {ROME}}}; {{"type": "function", "name": "time.now"}}',
        [(Q, ROME), ("time.now", "{}")],
    ),
    (LlamaJson, '{"name": "Bob", "parameters": 3}', ['{"name": "Bob", "parameters": 3}']),
    (LlamaJson, '{"age": 3} is JSON.', ['{"age": 3} is JSON.']),
    (LlamaJson, f'Words {{"name": "{Q}"}}', [f'Words {{"name": "{Q}"}}']),
    (LlamaJson, "<|python_tag|>print(1)", ["print(1)"]),
    (LlamaJson, " \n", [" \n"]),
    # Pythonic
    (
        LlamaPythonic,
        "[get_weather(city='Ro\\'me, (IT)', days=2, where={'a': [1, None]}, exact=True), time.now()]",
        [
            (Q, '{"city": "Ro\'me, (IT)", "days": 2, "where": {"a": [1, null]}, "exact": true}'),
            ("time.now", "{}"),
        ],
    ),
    (LlamaPythonic, "<|python_start|>[time.now()]<|python_end|>", [("time.now", "{}")]),
    (
        LlamaPythonic,
        '[get_weather(city=true, days=[a,b], x="é")]',
        [(Q, '{"city": true, "days": "[a,b]", "x": "é"}')],
    ),
    (LlamaPythonic, "[1, 2] is a list.", ["[1, 2] is a list."]),
    (LlamaPythonic, "[other(a=1)]", ["[other(a=1)]"]),
    (LlamaPythonic, "[get_weather(city='Ro", [(Q, "")]),
    (LlamaPythonic, "[get_weather(days=2, city='Ro", [(Q, '{"days": 2')]),
    (LlamaPythonic, "Words.", ["Words."]),
    # Mistral
    (
        Mistral,
        f'[TOOL_CALLS] [{{"name": "{Q}", "arguments": {ROME}}}, {{"name": "b", "arguments": {{}}}}]',
        [(Q, ROME), ("b", "{}")],
    ),
    (
        Mistral,
        f"Well.[TOOL_CALLS]{Q}[ARGS]{ROME}[TOOL_CALLS]b[CALL_ID]abcdefghi[ARGS]{{}}",
        ["Well.", (Q, ROME), ("b", "{}", "abcdefghi")],
    ),
    (Mistral, f"[TOOL_CALLS]{Q}{ROME}", [(Q, ROME)]),
    (Mistral, "[TOOL_CALLS]get_we", ["[TOOL_CALLS]get_we"]),
    (Mistral, "[TOOL", ["[TOOL"]),
    # DeepSeek
    (
        DeepSeek,
        f"Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{Q}\n```json\n{ROME}\n```"
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>b\n```json\n{}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ["Ok.", (Q, ROME), ("b", "{}")],
    ),
    (
        DeepSeek,
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{Q}<｜tool▁sep｜>{ROME}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>b<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [(Q, ROME), ("b", "{}")],
    ),
    (DeepSeek, '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>b<｜tool▁sep｜>{"a', [("b", '{"a')]),
    # Kimi
    (
        Kimi,
        "Hm. <|tool_calls_section_begin|><|tool_call_begin|>"
        f"functions.{Q}:0<|tool_call_argument_begin|>"
        f"{ROME}<|tool_call_end|><|tool_call_begin|>functions.b:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        ["Hm.", (Q, ROME, f"functions.{Q}:0"), ("b", "{}", "functions.b:1")],
    ),
    # Qwen3-Coder
    (
        Qwen3Coder,
        'I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nSan\n"Marino"\n\n'
        "</parameter>\n"
        '<parameter=days>\n2\n</parameter>\n<parameter=where>\n{"a": 1}\n</parameter>\n'
        "<parameter=exact>\nTrue\n</parameter>\n</function>\n</tool_call>",
        [
            "I look.",
            (Q, '{"city": "San\\n\\"Marino\\"\\n", "days": 2, "where": {"a": 1}, "exact": true}'),
        ],
    ),
    (
        Qwen3Coder,
        "<function=time.now>\n</function>\n</tool_call>\n<tool_call>\n<function=x>\n<parameter=a>\n[1</parameter>"
        "</function></tool_call>",
        [("time.now", "{}"), ("x", '{"a": "[1"}')],
    ),
    (Qwen3Coder, "<tool_call>\n<function=get_weather>\n<parameter=city>\nRo<", [(Q, '{"city": "Ro<')]),
    (Qwen3Coder, "A <tool_call> B", ["A <tool_call> B"]),
    # GLM
    (
        Glm,
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome\n</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n<arg_key>unit</arg_key>\n"
        "<arg_value>C</arg_value>\n</tool_call><tool_call>time.now\n</tool_call>",
        [(Q, '{"city": "Rome\\n", "days": 2, "unit": "C"}'), ("time.now", "{}")],
    ),
    (
        Glm,
        "<tool_call>x<arg_key>a</arg_key><arg_value>5</arg_value><arg_key>b</arg_key><arg_value>five</arg_value>"
        "</tool_call>",
        [("x", '{"a": 5, "b": "five"}')],
    ),
    (Glm, "<tool_call>get_wea", ["<tool_call>get_wea"]),
    # gpt-oss
    (
        Harmony,
        "<|channel|>analysis<|message|>Hm, well.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hello!",
        [{"thought": "Hm, well."}, "Hello!"],
    ),
    (
        Harmony,
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.{Q} <|constrain|>json<|message|>{ROME}",
        ["I look.", (Q, ROME)],
    ),
    (
        Harmony,
        "<|channel|>analysis<|message|>a<|end|>"
        f"<|start|>assistant to=functions.{Q}<|channel|>commentary json"
        f"<|message|>{ROME}<|call|>",
        [{"thought": "a"}, (Q, ROME)],
    ),
    (Harmony, "<|channel|>analysis<|mess", []),
    (Harmony, "plain", ["plain"]),
]


@pytest.mark.parametrize(("family", "text", "expected"), CASES)
def test_calls(family: type[Family], text: str, expected: list[Any]) -> None:
    form = AnswerFormat(family(), None)
    assert joined(read(form, [text])) == expected
    for pieces in divisions(text):
        assert joined(read(form, pieces)) == expected, pieces


@pytest.mark.parametrize(("family", "text", "expected"), CASES)
def test_beginnings_agree_with_the_whole(family: type[Family], text: str, expected: list[Any]) -> None:
    """What has been passed on is never taken back, whatever comes afterwards."""
    form = AnswerFormat(family(), None)
    calls = [entry for entry in expected if isinstance(entry, tuple)]
    reader = AnswerReader(form, Begun(), FUNCTIONS)
    parts: list[Part] = []
    for letter in text:
        parts += reader.push(letter)
        found = [entry for entry in joined(parts) if isinstance(entry, tuple)]
        for got, whole in zip(found, calls, strict=False):
            assert got[0] == whole[0]
            assert whole[1].startswith(got[1])
        assert len(found) <= len(calls)


@pytest.mark.parametrize(("family", "text", "expected"), CASES)
def test_answers_that_are_cut_off(family: type[Family], text: str, expected: list[Any]) -> None:
    """Every call before the cut is told, and none is made up."""
    form = AnswerFormat(family(), None)
    names = [entry[0] for entry in expected if isinstance(entry, tuple)]
    for length in range(len(text)):
        found = [entry[0] for entry in joined(read(form, [text[:length]])) if isinstance(entry, tuple)]
        assert found == names[: len(found)]


@pytest.mark.parametrize(("family", "text", "expected"), CASES)
def test_complete_calls_have_arguments_that_are_json(
    family: type[Family], text: str, expected: list[Any]
) -> None:
    for entry in expected:
        if isinstance(entry, tuple) and entry[1].endswith("}"):
            assert isinstance(json.loads(entry[1]), dict)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (Hermes, '<tool_call>{"name": "a", "arguments": {"text": "one two three"}}</tool_call>'),
        (LlamaJson, '{"name": "get_weather", "parameters": {"text": "one two three"}}'),
        (Mistral, '[TOOL_CALLS]a[ARGS]{"text": "one two three"}'),
        (
            DeepSeek,
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{"text": "one two three"}',
        ),
        (
            Kimi,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>"
            '{"text": "one two three"}',
        ),
        (
            Qwen3Coder,
            "<tool_call><function=get_weather><parameter=city>one two three</parameter></function>",
        ),
        (Glm, "<tool_call>get_weather<arg_key>city</arg_key><arg_value>one two three</arg_value>"),
        (Harmony, '<|channel|>commentary to=functions.a<|message|>{"text": "one two three"}'),
    ],
)
def test_arguments_come_as_they_are_written(family: type[Family], text: str) -> None:
    before = text[: text.index(" two")]
    (call,) = joined(read(AnswerFormat(family(), None), [before]))
    assert call[1].endswith('"one')


@pytest.mark.parametrize("family", [Hermes, LlamaJson])
def test_objects_that_are_no_calls_are_not_held_back(family: type[Family]) -> None:
    reader = AnswerReader(AnswerFormat(family(), None), Begun(), FUNCTIONS)
    parts = [part for letter in '{"city": "Rome, It' for part in reader.push(letter)]
    assert joined(parts) == ['{"city": "Rome, It']


def test_without_functions_nothing_is_a_call() -> None:
    text = '<tool_call>\n{"name": "a"}\n</tool_call>'
    assert joined(read(AnswerFormat(Hermes(), None), [text], functions=None)) == [text]


THINK = AnswerFormat(Hermes(), Reasoning("<think>", "</think>"))


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nHello.", False, [{"thought": "Hm."}, "Hello."]),
        ("\n<think>Hm.</think>Hello.\n", False, [{"thought": "Hm."}, "Hello.\n"]),
        ("Hm.\n</think>\n\nHello.", True, [{"thought": "Hm."}, "Hello."]),
        ("<think>Hm.</think>Hello.", True, [{"thought": "Hm."}, "Hello."]),
        ("Hm. <b> </thin", True, [{"thought": "Hm. <b> </thin"}]),
        ("<think>\n\n</think>\n\nHello.", False, ["Hello."]),
        (" Hello <think>.", False, [" Hello <think>."]),
        ("<thi", False, ["<thi"]),
        (
            'a</think>\n<tool_call>\n{"name": "x", "arguments": {}}\n</tool_call>',
            True,
            [{"thought": "a"}, ("x", "{}")],
        ),
    ],
)
def test_thoughts(text: str, opened: bool, expected: list[Any]) -> None:
    for functions in (FUNCTIONS, None) if "<tool_call>" not in text else (FUNCTIONS,):
        for pieces in [[text], *divisions(text)]:
            assert joined(read(THINK, pieces, Begun(thinking=opened), functions)) == expected


def test_a_header_in_the_prompt() -> None:
    form = AnswerFormat(Harmony(), None)
    text = "lo!<|end|><|start|>assistant<|channel|>final<|message|>Bye"
    begun = Begun(header="<|start|>assistant<|channel|>final")
    for pieces in [[text], *divisions(text)]:
        assert joined(read(form, pieces, begun)) == ["lo!Bye"]
