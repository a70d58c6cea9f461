"""Stop strings are found wherever texts are divided, and nothing is held back without need."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenmill.errors import RequestError
from tokenmill.tokenizer import StopStringChecker

LETTERS = st.text("abc", max_size=12)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where the first stop string ends, and which: the plainest way to say it."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


@settings(deadline=None)
@given(st.lists(LETTERS, max_size=6), STOPS, st.booleans())
@example(["ab", "ab", "ac"], ["abac"], False)
@example(["aab"], ["b", "ab"], True)
def test_what_is_found_does_not_depend_on_the_division(
    parts: list[str], stops: list[str], include: bool
) -> None:
    text = "".join(parts)
    checker = StopStringChecker(stops, include_stop_str_in_output=include)
    seen = emitted = ""
    for part in parts:
        emitted += checker.push(part)
        seen += part
        if checker.stopped_by is None:
            held = max((k for s in stops for k in range(1, len(s)) if seen.endswith(s[:k])), default=0)
            assert emitted == seen[: len(seen) - held]
    found = first_stop(text, stops)
    if found is None:
        assert checker.stopped_by is None
        assert emitted + checker.finish() == text
    else:
        end, stop = found
        assert checker.stopped_by == stop
        assert emitted + checker.finish() == (text[:end] if include else text[: end - len(stop)])


def test_nothing_comes_after_a_stop_string() -> None:
    checker = StopStringChecker(["END"])
    assert checker.push("one EN") == "one "
    assert checker.push("D two") == ""
    assert checker.push("three") == ""
    assert checker.finish() == ""
    assert checker.stopped_by == "END"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        StopStringChecker(["a", ""])
