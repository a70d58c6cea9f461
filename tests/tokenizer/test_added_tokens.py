"""Tokens written out in a text are found."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.tokenizer.added_tokens import AddedTokens


def plainly(text: str, ids: dict[str, int]) -> list[str | int]:
    """The leftmost token, the longest of them, and so on: the plainest way to say it."""
    parts: list[str | int] = []
    rest = ""
    while text:
        token = max((t for t in ids if text.startswith(t)), key=len, default=None)
        if token is None:
            rest, text = rest + text[0], text[1:]
            continue
        parts += [rest] if rest else []
        parts.append(ids[token])
        rest, text = "", text[len(token) :]
    return parts + ([rest] if rest else [])


@settings(deadline=None)
@given(st.text("ab<", max_size=20), st.sets(st.text("ab<", min_size=1, max_size=4), max_size=6))
def test_the_leftmost_and_longest_count(text: str, tokens: set[str]) -> None:
    ids = {token: index for index, token in enumerate(sorted(tokens))}
    assert list(AddedTokens(ids).split(text)) == plainly(text, ids)


def test_white_space_behind_some_tokens_is_dropped() -> None:
    tokens = AddedTokens({"<a>": 1, "<b>": 2}, strips_right={1})
    assert list(tokens.split("<a> \n x<b> y <a>  ")) == [1, "x", 2, " y ", 1]
    assert list(tokens.split("<a> <b>")) == [1, 2]
