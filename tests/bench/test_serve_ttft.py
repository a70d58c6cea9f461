"""bench/serve_ttft.py: how it counts, against the fake engine, and what it makes of its figures."""

from __future__ import annotations

import asyncio
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from tests.server.conftest import running
from tests.server.fake_engine import FakeEngine


@pytest.fixture(scope="module")
def ttft(bench_is_importable: None) -> ModuleType:
    return import_module("serve_ttft")


def address(ttft: ModuleType, url: str) -> Any:
    host, port = url.removeprefix("http://").split(":")
    return ttft.Address(host, int(port))


def test_the_system_prompt_is_as_long_as_asked(ttft: ModuleType) -> None:
    """A token of the fake engine is a letter, so a word more would be too much."""
    with running(FakeEngine()) as url:
        text = asyncio.run(ttft.system_prompt(address(ttft, url), 200))
    assert 200 - max(len(word) for word in ttft.WORDS) - 1 <= len(text) <= 200


def test_a_round(ttft: ModuleType) -> None:
    engine = FakeEngine()
    work = ttft.Workload(prompt_tokens=100, gen_tokens=3, concurrency=(1, 4), rounds=1)
    with running(engine) as url:
        found = asyncio.run(ttft.one_round(address(ttft, url), work))
    assert [measured.concurrency for measured in found] == [1, 4]
    assert [len(measured.ttft_s) for measured in found] == [1, 4]
    assert [measured.cached for measured in found] == [1, 4]
    chats = [call for call in engine.asked if isinstance(call.prompt, dict)]
    assert len(chats) == 1 + 1 + 4
    assert len({call.prompt["prompt"] for call in chats}) == 6
    assert {call.params.max_tokens for call in chats} == {3}


def test_a_server_that_fails_ends_it(ttft: ModuleType) -> None:
    with running(FakeEngine(is_dead=True)) as url, pytest.raises(SystemExit, match="stopped"):
        asyncio.run(ttft.system_prompt(address(ttft, url), 100))


def test_medians_and_their_spread(ttft: ModuleType) -> None:
    def one(*seconds: float) -> Any:
        return ttft.Measured(len(seconds), list(seconds), 100 * len(seconds), 90 * len(seconds))

    rounds = [[one(1.0), one(1.0, 3.0)], [one(2.0), one(2.0, 2.0)], [one(9.0), one(4.0, 8.0)]]
    alone, two = ttft.summarise(rounds)
    assert (alone["median_s"], alone["least_s"], alone["most_s"]) == (2.0, 1.0, 9.0)
    assert (two["median_s"], two["least_s"], two["most_s"], two["last_s"]) == (2.5, 2.0, 6.0, 3.0)
    assert two["cached_share"] == 0.9
    table = ttft.lines({"on": [alone], "off": [{**alone, "median_s": 4.0}]})
    assert table[-1] == "| 1 | 2000 (1000-9000) | 4000 (1000-9000) | 2.0 | 90% |"
