"""bench/peer.py: other engines are measured as ``tokenmill bench`` measures this one."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from tokenmill.benchmark import load
from tokenmill.benchmark.load import Trace


@pytest.fixture
def engine(peer: ModuleType) -> Any:
    """Counts what it is given; its next token is the last one plus one."""

    class Counting(peer.StepPeer):  # type: ignore[name-defined, misc]
        vocab_size = 100

        def __init__(self) -> None:
            self.prompts: list[list[int]] = []
            self.steps: list[tuple[int, list[int]]] = []

        def clear(self) -> None:
            self.prompts, self.steps = [], []

        def prefill(self, seq: int, prompt: list[int]) -> int:
            assert seq == len(self.prompts)
            self.prompts.append(prompt)
            return prompt[-1] + 1

        def step(self, position: int, tokens: list[int]) -> list[int]:
            self.steps.append((position, tokens))
            return [token + 1 for token in tokens]

    return Counting()


def task(peer: ModuleType, **changes: Any) -> Any:
    values = {
        "model": "m",
        "threads": 1,
        "prompt_tokens": 5,
        "gen_tokens": 4,
        "concurrency": (1, 3),
        "contexts": (7,),
        "first_token": False,
    }
    return peer.Task(**{**values, **changes})


def test_prompts_are_the_same(peer: ModuleType) -> None:
    ours, theirs = load.Prompts(1000), peer.Prompts(1000)
    assert [ours.take(n) for n in (3, 5)] == [theirs.take(n) for n in (3, 5)]


def test_rates_are_counted_alike(peer: ModuleType) -> None:
    for tokens in (
        [(1.0, 2.0, 3.0), (2.0, 3.0, 4.0)],
        [(1.0, 2.0), (5.0, 6.0)],
        [(1.0,)],
    ):
        ours = load.decode_rate([Trace(0.0, own) for own in tokens])
        assert peer.decode_rate(peer.Times(0.0, [list(own) for own in tokens])) == ours


def test_summaries_are_alike(peer: ModuleType) -> None:
    tokens = [(1.0, 2.0, 3.0), (2.0, 3.0, 4.5)]
    ours = load.run_values(load.summarise([Trace(0.0, own) for own in tokens], 10))
    assert peer.summarise(peer.Times(0.0, [list(own) for own in tokens]), 10) == ours


def test_texts_advance_together(peer: ModuleType, engine: Any) -> None:
    times = engine.run([[1, 2], [7, 8]], 3)
    assert engine.prompts == [[1, 2], [7, 8]]
    assert engine.steps == [(2, [3, 9]), (3, [4, 10])]
    assert [len(own) for own in times.tokens] == [3, 3]
    assert times.tokens[0][1:] == times.tokens[1][1:]


def test_everything_is_measured(peer: ModuleType, engine: Any) -> None:
    found = peer.measure(engine, task(peer))
    json.dumps(found)
    assert [run["concurrency"] for run in found["runs"]] == [1, 3]
    assert [run["tokens"] for run in found["contexts"]] == [7]
    assert found["prefill_tok_s"] > 0
    assert found["peak_rss_bytes"] > 1 << 20
    assert len(engine.prompts[0]) == 7  # the last thing was the long context


def test_the_worker_prints_one_object(
    peer: ModuleType, engine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    peer.main("rival", "1.2", task(peer), lambda asked: engine)
    found = json.loads(capsys.readouterr().out)
    assert (found["engine"], found["version"], found["threads"]) == ("rival", "1.2", 1)
    assert found["load_s"] >= 0


def test_only_a_first_token(peer: ModuleType, engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    peer.main("rival", "1.2", task(peer, first_token=True), lambda asked: engine)
    assert capsys.readouterr().out == "first\n"
    assert engine.steps == []
