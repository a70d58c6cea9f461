"""bench/serve_load.py: what it takes for an error, and a short run on a real model."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.bench.conftest import BENCH
from tests.server.conftest import running
from tests.server.fake_engine import FakeEngine


@pytest.fixture(scope="module")
def load(bench_is_importable: None) -> ModuleType:
    return import_module("serve_load")


@pytest.fixture(scope="module")
def behaviour(bench_is_importable: None) -> ModuleType:
    return import_module("load_behaviour")


@pytest.fixture(scope="module")
def http(bench_is_importable: None) -> ModuleType:
    return import_module("http_client")


KINDS = ["stream", "slow", "abort", "impatient", "malformed", "oversized_prompt", "oversized_body"]


def ask(behaviour: ModuleType, http: ModuleType, kind: str, url: str, times: int = 1) -> list[Any]:
    host, port = url.removeprefix("http://").split(":")
    asker = behaviour.Asker(http.Address(host, int(port)), "fake", random.Random(kind))

    async def all_of_them() -> list[Any]:
        found = []
        for _ in range(times):
            outcome = behaviour.Outcome(kind, True, "")
            try:
                await getattr(asker, kind)(outcome)
            except behaviour.Unasked as error:
                outcome.asked_for, outcome.what = False, str(error)
            found.append(outcome)
        return found

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_server_is_not_blamed(behaviour: ModuleType, http: ModuleType, kind: str) -> None:
    with running(FakeEngine()) as url:
        outcomes = ask(behaviour, http, kind, url, times=12 if kind == "malformed" else 1)
    assert [outcome.what for outcome in outcomes if not outcome.asked_for] == []
    if kind == "stream":
        assert all(o.ttft_s > 0 and len(o.gaps_s) == o.pieces - 1 for o in outcomes)


def test_an_engine_that_dies_is_noticed(behaviour: ModuleType, http: ModuleType) -> None:
    with running(FakeEngine(is_dead=True)) as url:
        (outcome,) = ask(behaviour, http, "stream", url)
    assert not outcome.asked_for
    assert "503" in outcome.what


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (['{"choices": [{"delta": {"content": "a"}, "finish_reason": null}]}'], "without .DONE"),
        (['{"choices": [{"delta": {}, "finish_reason": null}]}', "[DONE]"], "without a reason"),
        (['{"error": {"message": "lost"}}', "[DONE]"], "lost"),
    ],
)
def test_streams_that_are_not_whole(behaviour: ModuleType, events: list[str], problem: str) -> None:
    class Reply:
        status = 200

        async def events(self):  # type: ignore[no-untyped-def]
            for event in events:
                yield event

    async def read() -> None:
        async for _ in behaviour.texts(Reply()):
            pass

    with pytest.raises(behaviour.Unasked, match=problem):
        asyncio.run(read())


def summary(**changes: Any) -> dict[str, Any]:
    rest = {"num_requests_running": 0.0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}
    return {
        "unasked_count": 0,
        "unasked": {},
        "cut": 0,
        "whole_streams": 3,
        "at_rest": rest,
        "memory_flat": True,
        "memory_growth_bytes": 0,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, None),
        ({"unasked_count": 1, "unasked": {"stream: 500": 1}}, "nobody asked for"),
        ({"cut": 2}, "2 requests had not ended"),
        ({"whole_streams": 0}, "not one stream"),
        ({"at_rest": {}}, "not at rest"),
        (
            {"at_rest": {**summary()["at_rest"], "kv_cache_usage_perc": 0.1}},
            "not at rest",
        ),
        ({"memory_flat": False, "memory_growth_bytes": 50 << 20}, "grew by 50 MiB"),
    ],
)
def test_complaints(load: ModuleType, changes: dict[str, Any], complaint: str | None) -> None:
    found = load.complaints(summary(**changes), load.Load(clients=1, seconds=300.0, seed=1))
    if complaint is None:
        assert found == []
    else:
        assert len(found) == 1
        assert complaint in found[0]


def test_a_short_run_says_nothing_about_memory(load: ModuleType) -> None:
    assert load.complaints(summary(memory_flat=False), load.Load(1, 5.0, 1)) == []


def test_growth(load: ModuleType) -> None:
    def samples(*mebibytes: int) -> list[Any]:
        return [load.Sample(float(n), m << 20, m << 20) for n, m in enumerate(mebibytes)]

    warming_up = samples(10, 400, 700, 900, 1000, 1000, 1000, 1000)
    assert load.growth(warming_up) == 0
    assert load.is_flat(warming_up)
    leaking = samples(*range(1000, 1400, 20))
    assert load.growth(leaking) == 100 << 20
    assert not load.is_flat(leaking)
    assert load.is_flat(samples(*([1000] * 10), *([1010] * 10)))


def test_gauges_of_either_prefix(load: ModuleType) -> None:
    text = """# HELP vllm:num_requests_running x
vllm:num_requests_running{model_name="m"} 2.0
vllm:num_requests_waiting{model_name="m"} 1
vllm:kv_cache_usage_perc{model_name="m"} 0.25
vllm:num_requests_running_total 9
"""
    expected = {"num_requests_running": 2.0, "num_requests_waiting": 1.0, "kv_cache_usage_perc": 0.25}
    assert load.read_gauges(text) == expected


@pytest.mark.model
def test_a_short_run(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "serve_load.py"), "demo", "--clients", "8"]
    command += ["--minutes", "0.1", "--cache-memory", "128M", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text("utf-8"))
    assert found["complaints"] == []
    assert found["servers"]["tokenmill"]["whole_streams"] > 0
    assert found["servers"]["tokenmill"]["ttft_s"]["p50"] > 0
