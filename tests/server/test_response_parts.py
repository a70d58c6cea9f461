"""Parts of the Responses API that need no server: what is kept, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.server.errors import ApiError
from tokenmill.server.responses.store import ResponseStore
from tokenmill.server.responses.truncation import without_oldest


def answer(name: str, text: str = "") -> dict[str, Any]:
    return {"id": name, "output": [{"type": "message", "text": text}]}


def item(text: str) -> dict[str, Any]:
    return {"type": "message", "text": text}


def missing(store: ResponseStore, name: str) -> bool:
    try:
        store.get(name)
    except ApiError:
        return True
    return False


def test_the_store_forgets_what_was_not_used_for_longest() -> None:
    store = ResponseStore(10_000, max_responses=2)
    store.add(answer("a"), [], None)
    store.add(answer("b"), [], None)
    store.get("a")
    store.add(answer("c"), [], None)
    assert (missing(store, "a"), missing(store, "b"), missing(store, "c")) == (False, True, False)
    assert len(store) == 2


def test_the_store_has_a_size() -> None:
    store = ResponseStore(3000)
    store.add(answer("a", "x" * 1000), [], None)
    store.add(answer("b"), [item("x" * 1000)], None)
    store.add(answer("c", "x" * 1000), [], None)
    assert (missing(store, "a"), missing(store, "b"), missing(store, "c")) == (True, False, False)
    assert 2000 < store.num_bytes <= 3000
    store.add(answer("d", "x" * 3000), [], None)
    assert missing(store, "d")
    assert not missing(store, "b")
    store.remove("b")
    store.remove("c")
    assert (store.num_bytes, len(store)) == (0, 0)
    with pytest.raises(ApiError) as caught:
        store.remove("b")
    assert (caught.value.status, caught.value.code) == (404, "response_not_found")


def test_a_store_without_room_keeps_nothing() -> None:
    store = ResponseStore(0)
    store.add(answer("a"), [], None)
    assert missing(store, "a")


def test_text_counts_in_bytes() -> None:
    store = ResponseStore(3000)
    store.add(answer("a", "ä" * 1500), [], None)
    assert missing(store, "a")


def test_a_response_counts_with_its_history() -> None:
    store = ResponseStore(10_000)
    store.add(answer("a", "x" * 1000), [item("one")], None)
    store.add(answer("b", "y"), [item("two")], store.get("a"))
    store.add(answer("c", "z"), [item("three")], store.get("b"))
    store.remove("a")
    store.remove("b")
    last = store.get("c")
    texts = [part["text"] for part in last.conversation]
    assert texts == ["one", "x" * 1000, "two", "y", "three", "z"]
    assert store.num_bytes == last.num_bytes > 1000


def test_the_store_forgets_with_time() -> None:
    now = [0.0]
    store = ResponseStore(10_000, kept_seconds=10, clock=lambda: now[0])
    store.add(answer("a"), [], None)
    now[0] = 5.0
    store.add(answer("b"), [], None)
    now[0] = 9.9
    assert not missing(store, "a")
    now[0] = 10.0
    assert missing(store, "a")
    assert not missing(store, "b")
    assert len(store) == 1


def conversation(roles: str) -> list[dict[str, Any]]:
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": names[role], "content": str(n)} for n, role in enumerate(roles)]


@pytest.mark.parametrize(
    ("roles", "most", "left"),
    [
        ("uaua", 4, "0123"),
        ("uauau", 4, "234"),
        ("suauau", 4, "0345"),
        ("suauau", 2, "05"),
        ("suauau", 1, "05"),
        ("uatauatau", 5, "45678"),
        ("uatauatau", 4, "8"),
        ("auau", 3, "123"),
        ("su", 1, "01"),
        ("s", 0, "0"),
    ],
)
def test_the_oldest_turns_go(roles: str, most: int, left: str) -> None:
    rest = without_oldest(conversation(roles), lambda messages: len(messages) <= most)
    assert "".join(message["content"] for message in rest) == left


def test_few_trials_are_needed() -> None:
    trials: list[int] = []

    def fits(messages: Any) -> bool:
        trials.append(len(messages))
        return len(messages) <= 100

    assert len(without_oldest(conversation("ua" * 500), fits)) == 100
    assert len(trials) <= 10
