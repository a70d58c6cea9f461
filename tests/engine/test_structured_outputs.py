"""Forms of answers: what is accepted, and what comes out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tokenmill import LLM, SamplingParams, StructuredOutputs
from tokenmill.errors import RequestError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"json_object": False}, "there is none"),
        ({"json": False}, "no answer can meet"),
        ({"json": "{"}, "no JSON"),
        ({"json": "[1]"}, "must be an object"),
        ({"json": {"a": float("nan")}, "after": ""}, "after must be"),
        ({"json": {"a": {1, 2}}}, "no JSON"),
        ({"json": {"enum": ["x" * 200_000]}}, "more than 128000 characters"),
        ({"regex": ""}, "regex must be a text"),
        ({"regex": "a" * 20_000}, "at most 16000"),
        ({"grammar": 3}, "grammar must be a text"),
        ({"choice": []}, "choice must be a list"),
        ({"choice": ["a", ""]}, "not empty"),
        ({"choice": "yes"}, "must be a list"),
        ({"json_object": 2}, "must be true"),
        ({"regex": "a", "unless_begun_by": "b"}, "unless_begun_by needs after"),
    ],
)
def test_invalid_forms(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        StructuredOutputs(**fields)


def test_deeply_nested_schemas_are_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RequestError, match="levels deep"):
        StructuredOutputs(json=schema)


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(RequestError, match="an object with some of"):
        SamplingParams(structured_outputs={"xml": "a"})


def test_equal_schemas_are_equal_forms() -> None:
    assert StructuredOutputs(json='{"type": "object"}') == StructuredOutputs(json={"type": "object"})


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("demo", max_model_len=512)


FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "json": ({"json": PERSON}, r'\{\s*"name"\s*:\s*".{0,12}"\s*,\s*"age"\s*:\s*\d{1,3}\s*\}'),
    "regex": ({"regex": r"[a-f]{3}-\d{4}"}, r"[a-f]{3}-\d{4}"),
    "choice": ({"choice": ["yes", 'no "never"', "mäßig"]}, r'yes|no "never"|mäßig'),
    "lark": ({"grammar": 'start: "x = " /[0-9]{1,4}/ ";"'}, r"x = \d{1,4};"),
    "gbnf": ({"grammar": 'root ::= "a" [bc] "d"'}, "a[bc]d"),
}


def params(form: dict[str, Any], **more: Any) -> SamplingParams:
    defaults = {"structured_outputs": form, "temperature": 1.5, "seed": 7, "max_tokens": 120}
    return SamplingParams(**{**defaults, **more})


@pytest.mark.model
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("more", [{}, {"temperature": 0.0}, {"top_p": 0.9, "frequency_penalty": 0.2}])
def test_answers_have_the_form(llm: LLM, name: str, more: dict[str, Any]) -> None:
    form, pattern = FORMS[name]
    (output,) = llm.generate(["Tell me something: "], params(form, **more), use_tqdm=False)
    answer = output.outputs[0]
    assert answer.finish_reason == "stop"
    assert re.fullmatch(pattern, answer.text, re.DOTALL), answer.text


@pytest.mark.model
def test_json_objects_are_json(llm: LLM) -> None:
    many = llm.generate(
        ["An object: "] * 3,
        [params({"json_object": True}, seed=seed, max_tokens=60) for seed in (1, 2, 3)],
        use_tqdm=False,
    )
    for output in many:
        text, reason = output.outputs[0].text, output.outputs[0].finish_reason
        assert text.lstrip().startswith("{")
        if reason == "stop":
            assert isinstance(json.loads(text), dict)


@pytest.mark.model
def test_results_do_not_depend_on_company(llm: LLM) -> None:
    texts = [f"Number {i}: " for i in range(6)]
    asked = [params(FORMS[name][0], n=1, logprobs=1) for name in FORMS] + [
        SamplingParams(temperature=0.0, max_tokens=12)
    ]
    together = llm.generate(texts, asked, use_tqdm=False)
    for text, one, output in zip(texts, asked, together, strict=True):
        (alone,) = llm.generate([text], one, use_tqdm=False)
        assert alone.outputs[0].token_ids == output.outputs[0].token_ids
        assert alone.outputs[0].logprobs == output.outputs[0].logprobs


@pytest.mark.model
def test_each_of_n_answers_has_the_form(llm: LLM) -> None:
    (output,) = llm.generate(["Code: "], params(FORMS["regex"][0], n=4), use_tqdm=False)
    texts = [answer.text for answer in output.outputs]
    assert all(re.fullmatch(FORMS["regex"][1], text) for text in texts)
    assert len(set(texts)) > 1


@pytest.mark.model
def test_the_end_of_the_form_goes_before_min_tokens(llm: LLM) -> None:
    (output,) = llm.generate(["Well: "], params({"choice": ["yes"]}, min_tokens=50), use_tqdm=False)
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("yes", "stop")


@pytest.mark.model
def test_a_form_may_begin_later(llm: LLM) -> None:
    form = {"choice": ["yes", "no"], "after": "."}
    (output,) = llm.generate(["The sky is"], params(form, temperature=0.0), use_tqdm=False)
    thought, _, answer = output.outputs[0].text.partition(".")
    assert thought
    assert answer.strip() in ("yes", "no")


def after_thoughts(token: str) -> StructuredOutputs:
    """A form that waits for a sentence if the answer begins with this token."""
    return StructuredOutputs(choice=["yes", "no"], after=".", unless_begun_by=token)


@pytest.mark.model
def test_the_first_token_decides_whether_a_form_waits(llm: LLM) -> None:
    greedy: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60}
    (free,) = llm.generate(["The sky is"], SamplingParams(**greedy), use_tqdm=False)
    first = llm.get_tokenizer().id_to_token(free.outputs[0].token_ids[0])
    texts = []
    for token in (first, "A"):
        assert token is not None
        asked = SamplingParams(structured_outputs=after_thoughts(token), **greedy)
        (output,) = llm.generate(["The sky is"], asked, use_tqdm=False)
        texts.append(output.outputs[0].text)
    thought, _, answer = texts[0].partition(".")
    assert free.outputs[0].text.startswith(thought)
    assert answer.strip() in ("yes", "no")
    assert texts[1] in ("yes", "no")


@pytest.mark.model
def test_a_token_that_does_not_exist_begins_nothing(llm: LLM) -> None:
    asked = params({}, structured_outputs=after_thoughts("<no such token>"))
    (output,) = llm.generate(["Well: "], asked, use_tqdm=False)
    assert output.outputs[0].text in ("yes", "no")


@pytest.mark.model
def test_space_in_json_has_bounds(llm: LLM) -> None:
    line_end = llm.get_tokenizer().encode("\n", add_special_tokens=False)
    bias = dict.fromkeys(line_end, 100.0)
    (output,) = llm.generate(["{"], params({"json": PERSON}, logit_bias=bias), use_tqdm=False)
    assert "\n\n" not in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"


@pytest.mark.model
def test_a_form_that_gets_too_complex_fails_its_own_request_only(llm: LLM) -> None:
    hard = params({"regex": "(a?){3000}a{3000}"})
    with pytest.raises(RequestError, match="can't be followed any further"):
        llm.generate(["x", "y"], [hard, params(FORMS["regex"][0])], use_tqdm=False)
    (output,) = llm.generate(["y"], params(FORMS["regex"][0]), use_tqdm=False)
    assert output.outputs[0].finish_reason == "stop"


@pytest.mark.model
@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"json": {"type": "objekt"}}, "objekt"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum"),
        ({"json": {"type": "object", "properties": {"a": {"$ref": "#/nope"}}}}, "/nope"),
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": "(.{1,1000}){1,1000}x"}, "too many"),
        ({"grammar": "start: foo"}, "foo"),
        ({"grammar": 'root ::= "a" other'}, "other"),
    ],
)
def test_impossible_forms_say_which_part(llm: LLM, form: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        llm.generate(["x"], params(form), use_tqdm=False)
