"""The text of an answer: detokenizer and stop texts together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenmill.engine.text import AnswerText
from tokenmill.tokenizer import StopStringChecker


class Characters:
    """Token ids are characters; the last one is held back until the end."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, token_ids: Sequence[int]) -> str:
        text = self._held + "".join(map(chr, token_ids))
        self._held = text[-1:]
        return text[:-1]

    def finish(self) -> str:
        return self._held


def read(text: str, stop: Sequence[str], *, include: bool = False, min_tokens: int = 0) -> AnswerText:
    answer = AnswerText(
        Characters(), StopStringChecker(stop, include_stop_str_in_output=include), min_tokens
    )
    answer.shown = "".join(answer.push([ord(c)]) for c in text) + answer.finish()  # type: ignore[attr-defined]
    return answer


@pytest.mark.parametrize(
    ("include", "min_tokens", "shown", "stopped_by"),
    [
        (False, 0, "so", "me"),
        (True, 0, "some", "me"),
        (False, 4, "some and so", "me"),
        (False, 40, "some and some", None),
    ],
)
def test_stop_texts(include: bool, min_tokens: int, shown: str, stopped_by: str | None) -> None:
    answer = read("some and some", ["me", "xyz"], include=include, min_tokens=min_tokens)
    assert answer.shown == shown  # type: ignore[attr-defined]
    assert answer.stopped_by == stopped_by


def test_a_stop_text_is_found_in_what_the_end_releases() -> None:
    answer = read("abc", ["c"])
    assert answer.shown == "ab"  # type: ignore[attr-defined]
    assert answer.stopped_by == "c"


def test_several_tokens_at_once_are_as_one_by_one() -> None:
    for size in (1, 2, 3, 13):
        answer = AnswerText(Characters(), StopStringChecker(["me"]), 4)
        text = "some and some more"
        parts = [text[i : i + size] for i in range(0, len(text), size)]
        shown = "".join(answer.push([ord(c) for c in part]) for part in parts) + answer.finish()
        assert shown == "some and so"
