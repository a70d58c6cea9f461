"""The process that tries forms out."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tokenmill.engine.form_checker import FormChecker
from tokenmill.engine.structured_outputs import StructuredOutputs

ENDLESS = {
    "allOf": [{"type": "string", "pattern": f".*{letter}.*"} for letter in "abcdefghijklmnopqrstu"]
}
"""Compiling this takes minutes, and ends in a panic."""

GOOD = StructuredOutputs(json={"type": "object"})


@pytest.fixture
def checker() -> FormChecker:
    return FormChecker(1000, {0: "<end>", 700: "<call>"}, seconds=1)


@pytest.mark.parametrize(
    "form",
    [
        {"json": {"type": "string", "pattern": "^a+$"}},
        {"json": {"oneOf": [{"type": "integer"}, {"type": "null"}]}},
        {"json_object": True},
        {"regex": "[a-zé]+"},
        {"choice": [f"number {i}" for i in range(4000)]},
        {"grammar": 'start: "a" <call> <[700]>'},
        {"grammar": 'root ::= "a" | "b"'},
        {"regex": "a", "after": "b", "unless_begun_by": "<call>"},
    ],
)
def test_good_forms(checker: FormChecker, form: dict[str, Any]) -> None:
    assert checker.problem(StructuredOutputs(**form)) is None


@pytest.mark.parametrize(
    ("form", "part"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"regex": "(a"}, "unclosed group"),
        ({"grammar": "start: b"}, "b"),
        ({"grammar": "start: <no_such_token>"}, "no_such_token"),
        ({"grammar": 'root ::= "a" other'}, "other"),
    ],
)
def test_bad_forms(checker: FormChecker, form: dict[str, Any], part: str) -> None:
    problem = checker.problem(StructuredOutputs(**form))
    assert problem is not None
    assert part in problem


def test_forms_that_take_for_ever_are_given_up_and_others_go_on(checker: FormChecker) -> None:
    endless = StructuredOutputs(json=ENDLESS)
    assert checker.problem(endless) == "it is too complex"
    assert checker.problem(GOOD) is None
    process = checker._process
    assert process is not None
    # It is not tried again.
    os.kill(process.pid, signal.SIGSTOP)
    try:
        assert checker.problem(endless) == "it is too complex"
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert checker.problem(GOOD) is None


def test_a_process_that_died_is_started_again(checker: FormChecker) -> None:
    assert checker.problem(GOOD) is None
    first = checker._process
    assert first is not None
    first.kill()
    first.wait()
    assert checker.problem(GOOD) is None
    assert checker._process is not first
