"""What grammars of calls let through, and that their parsers read it back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from tests.server.tools.reading import TIME, WEATHER, joined, read
from tokenmill.engine.structured_outputs import StructuredOutputs
from tokenmill.server.answer_format import AnswerFormat, Begun
from tokenmill.server.errors import ApiError
from tokenmill.server.forms import answer_form
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
from tokenmill.server.tools.qwen3_coder import Qwen3Coder
from tokenmill.server.tools.request import ToolUse

END = 256


class Letters:
    """A tokenizer of bytes, and of some marks. special: the marks that are special tokens."""

    chat_template = None

    def __init__(self, special: Sequence[str]) -> None:
        self.special = list(special)
        self.eos_token_id, self.bos_token_id = END, None
        self.tokens = [bytes([value]) for value in range(256)] + [b"<eos>"]
        self.tokens += [mark.encode() for mark in special]
        self.special_token_ids = list(range(256, len(self.tokens)))

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def token_to_id(self, token: str) -> int | None:
        return 257 + self.special.index(token) if token in self.special else None

    def is_special(self, token_id: int) -> bool:
        return token_id >= 256

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        while text:
            mark = next((mark for mark in self.special if text.startswith(mark)), None)
            piece = mark or text[0]
            ids += [257 + self.special.index(mark)] if mark else list(piece.encode())
            text = text[len(piece) :]
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id]

    def id_to_token(self, token_id: int) -> str | None:
        raise NotImplementedError


@cache
def library(special: tuple[str, ...]) -> LLTokenizer:
    letters = Letters(special)
    return LLTokenizer(TokenizerWrapper(letters), n_vocab=len(letters.tokens))


def allows(form: StructuredOutputs, special: tuple[str, ...], text: str) -> bool:
    """Whether the whole text may be an answer."""
    assert form.grammar is not None
    matcher = LLMatcher(library(special), LLMatcher.grammar_from_lark(form.grammar), log_level=0)
    assert not matcher.is_error(), (matcher.get_error(), form.grammar)
    ids = [*Letters(special).encode(text), END]
    return matcher.validate_tokens(ids) == len(ids)


def form_of(
    family: Family,
    special: tuple[str, ...] = (),
    *,
    must: bool = True,
    parallel: bool = True,
    strict: bool = False,
    asked: StructuredOutputs | None = None,
) -> StructuredOutputs:
    functions = (replace(WEATHER, strict=strict), TIME)
    tools = ToolUse(functions, must=must, parallel=parallel)
    how = AnswerFormat(family, None)
    form = answer_form(how, Begun(), tools, asked, Letters(special), "")
    assert form is not None
    return form


ROME, PISA = '{"city": "Rome", "unit": "C"}', '{"city": "Pi\\"sa"}'
WRONG = '{"town": "Rome"}'


def tagged(arguments: str, pattern: str) -> str:
    return "".join(pattern.format(*entry) for entry in json.loads(arguments).items())


def hermes(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'


def llama(arguments: str) -> str:
    return f'{{"name": "get_weather", "parameters": {arguments}}}'


def python(arguments: str) -> str:
    return f"get_weather({', '.join(f'{k}={json.dumps(v)}' for k, v in json.loads(arguments).items())})"


def coder(arguments: str) -> str:
    inner = tagged(arguments, "<parameter={}>\n{}\n</parameter>\n")
    return f"<tool_call>\n<function=get_weather>\n{inner}</function>\n</tool_call>"


def glm(arguments: str) -> str:
    inner = tagged(arguments, "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n")
    return f"<tool_call>get_weather\n{inner}</tool_call>"


def glm_in_a_line(arguments: str) -> str:
    return glm(arguments).replace("\n", "")


def old_mistral(arguments: str) -> str:
    return f'{{"name": "get_weather", "arguments": {arguments}}}'


def new_mistral(arguments: str) -> str:
    return f"[TOOL_CALLS]get_weather[ARGS]{arguments}"


def fenced(arguments: str) -> str:
    inner = f"function<｜tool▁sep｜>get_weather\n```json\n{arguments}\n```"
    return f"<｜tool▁call▁begin｜>{inner}<｜tool▁call▁end｜>"


def unfenced(arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def kimi(arguments: str) -> str:
    head = "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    return f"{head}{arguments}<|tool_call_end|>"


def harmony(arguments: str) -> str:
    head = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    return f"{head}{arguments}"


SECTION = "<|tool_calls_section_{}|>"
CALLS = "<｜tool▁calls▁{}｜>"

WAYS: dict[str, tuple[Family, Any, str, str, str]] = {
    "hermes": (Hermes(), hermes, "", "\n", ""),
    "llama": (LlamaJson(), llama, "", "; ", ""),
    "pythonic": (LlamaPythonic(), python, "[", ", ", "]"),
    "coder": (Qwen3Coder(), coder, "", "\n", ""),
    "glm": (Glm("\n<arg_key>"), glm, "", "\n", ""),
    "glm 4.7": (Glm(), glm_in_a_line, "", "", ""),
    "old mistral": (Mistral(), old_mistral, "[TOOL_CALLS][", ", ", "]"),
    "new mistral": (Mistral("[ARGS]"), new_mistral, "", "", ""),
    "deepseek v3": (DeepSeek("```json"), fenced, CALLS.format("begin"), "\n", CALLS.format("end")),
    "deepseek v3.1": (DeepSeek(), unfenced, CALLS.format("begin"), "", CALLS.format("end")),
    "kimi": (Kimi(), kimi, SECTION.format("begin"), "", SECTION.format("end")),
    "harmony": (Harmony(), harmony, "", "", ""),
}
"""By name: family, one call, and what stands before, between and after calls."""

SPECIAL = {
    "llama": ("<|python_tag|>",),
    "new mistral": ("[TOOL_CALLS]", "[ARGS]"),
    "kimi": Kimi.marks,
    "harmony": Harmony.marks,
    "deepseek v3": DeepSeek.marks,
}
"""Marks that are special tokens; elsewhere they are texts."""

ONE_CALL = ("harmony",)


def answer_of(name: str, *arguments: str) -> str:
    _, write, before, between, after = WAYS[name]
    return before + between.join(map(write, arguments)) + after


@pytest.mark.parametrize("name", WAYS)
def test_calls_that_must_be(name: str) -> None:
    family, special = WAYS[name][0], SPECIAL.get(name, ())
    form = form_of(family, special)
    assert allows(form, special, answer_of(name, ROME))
    assert allows(form, special, answer_of(name, ROME, PISA)) == (name not in ONE_CALL)
    assert not allows(form, special, answer_of(name, WRONG))
    assert not allows(form, special, "Words.")
    assert not allows(form, special, "")
    single = form_of(family, special, parallel=False)
    assert allows(single, special, answer_of(name, PISA))
    assert not allows(single, special, answer_of(name, ROME, PISA))


@pytest.mark.parametrize("name", WAYS)
def test_parsers_read_what_grammars_allow(name: str) -> None:
    calls = [ROME] if name in ONE_CALL else [ROME, PISA]
    found = joined(read(AnswerFormat(WAYS[name][0], None), [answer_of(name, *calls)]))
    assert [entry[0] for entry in found] == ["get_weather"] * len(calls)
    assert [json.loads(entry[1]) for entry in found] == [json.loads(call) for call in calls]


@pytest.mark.parametrize("name", WAYS)
def test_strict_arguments_of_calls_that_need_not_be(name: str) -> None:
    family, special = WAYS[name][0], SPECIAL.get(name, ())
    form = form_of(family, special, must=False, strict=True)
    words = "Words, not calls."
    if name == "harmony":
        words = f"<|channel|>final<|message|>{words}"
    assert allows(form, special, words)
    assert allows(form, special, answer_of(name, ROME))
    assert not allows(form, special, answer_of(name, WRONG))
    if name == "hermes":
        bare = answer_of(name, ROME)[len("<tool_call>\n") : -len("\n</tool_call>")]
        assert allows(form, special, bare)
        assert not allows(form, special, bare.replace("city", "town"))
    if family.trigger is not None:
        assert allows(form, special, "Words and " + answer_of(name, PISA))


@pytest.mark.parametrize("name", WAYS)
def test_words_of_a_form_or_calls(name: str) -> None:
    family, special = WAYS[name][0], SPECIAL.get(name, ())
    form = form_of(family, special, must=False, asked=StructuredOutputs(choice=["yes", 'n"o']))
    head = "<|channel|>final<|message|>" if name == "harmony" else ""
    assert allows(form, special, f'{head}n"o')
    assert not allows(form, special, f"{head}maybe")
    assert allows(form, special, answer_of(name, ROME))


@pytest.mark.parametrize(
    ("asked", "good", "bad"),
    [
        (StructuredOutputs(json={"type": "integer"}), "12", "x"),
        (StructuredOutputs(json_object=True), '{"a": 1}', "[]"),
        (StructuredOutputs(regex=r"a/b\/\d+"), "a/b/12", "a/b/"),
        (StructuredOutputs(choice=["a\nb"]), "a\nb", "a"),
    ],
)
def test_forms_beside_channels(asked: StructuredOutputs, good: str, bad: str) -> None:
    how = AnswerFormat(Harmony(), None)
    form = answer_form(how, Begun(), None, asked, Letters(Harmony.marks), "")
    assert form is not None
    thoughts = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    for before in ("", thoughts):
        assert allows(form, Harmony.marks, f"{before}<|channel|>final<|message|>{good}")
        assert not allows(form, Harmony.marks, f"{before}<|channel|>final<|message|>{bad}")
    assert not allows(form, Harmony.marks, good)


def test_a_grammar_beside_tools_is_refused() -> None:
    with pytest.raises(ApiError, match="can't be combined with tools"):
        form_of(Hermes(), must=False, asked=StructuredOutputs(grammar='start: "a"'))


def test_without_a_wish_there_is_no_form() -> None:
    how, tools = AnswerFormat(Hermes(), None), ToolUse((WEATHER,), must=False, parallel=True)
    assert answer_form(how, Begun(), tools, None, Letters(()), "") is None
    assert answer_form(how, Begun(), None, None, Letters(()), "") is None


@pytest.mark.parametrize(
    ("prompt", "thinking", "after", "begun_by"),
    [
        ("a<think>\n", True, "</think>", None),
        ("a", False, "</think>", "<think>"),
        ("a<think>\n\n</think>\n\n", False, None, None),
    ],
)
def test_forms_begin_after_thoughts(
    prompt: str, thinking: bool, after: str | None, begun_by: str | None
) -> None:
    how = AnswerFormat(Hermes(), Reasoning("<think>", "</think>"))
    asked = StructuredOutputs(regex="a")
    form = answer_form(how, Begun(thinking=thinking), None, asked, Letters(()), prompt)
    assert form is not None
    assert (form.regex, form.after, form.unless_begun_by) == ("a", after, begun_by)
