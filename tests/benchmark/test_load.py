from __future__ import annotations

import asyncio

import pytest

from tests.server.fake_engine import FakeEngine
from tokenmill.benchmark.load import Prompts, Trace, decode_rate, run_at_once, summarise


class BenchEngine(FakeEngine):
    vocab_size = 200


def test_prompts_differ_from_the_first_token_and_repeat_with_the_program() -> None:
    one, two = Prompts(50_000), Prompts(50_000)
    first, second = one.take(8), one.take(8)
    assert first[:4] != second[:4]
    assert two.take(8) == first
    assert all(0 <= token < 50_000 for token in first + second)


def test_requests_run_at_once_and_get_what_was_asked() -> None:
    engine = BenchEngine(pace=0.001)
    traces = asyncio.run(run_at_once(engine, [[1, 2], [3, 4], [5, 6]], 4))
    assert [len(t.tokens) for t in traces] == [4, 4, 4]
    assert all(asked.params.ignore_eos and asked.params.greedy for asked in engine.asked)
    assert max(t.sent for t in traces) < min(t.tokens[0] for t in traces)
    assert all(list(t.tokens) == sorted(t.tokens) for t in traces)


def test_figures() -> None:
    traces = [Trace(0.0, (1.0, 2.0, 3.0)), Trace(0.0, (2.0, 3.0, 4.0))]
    run = summarise(traces, prompt_tokens=10)
    assert run.concurrency == 2
    assert run.ttft_p50_s == 1.5
    assert run.itl_p50_s == 1.0
    assert run.total_tok_s == pytest.approx((6 + 20) / 4.0)
    # From 2 (the last first token) to 3 (the first end) both got one token.
    assert run.decode_tok_s == pytest.approx(2.0)


def test_decoding_that_never_overlaps() -> None:
    traces = [Trace(0.0, (1.0, 2.0)), Trace(0.0, (5.0, 6.0))]
    assert decode_rate(traces) == pytest.approx(2 / 5)


def test_one_token_is_no_rate() -> None:
    assert decode_rate([Trace(0.0, (1.0,))]) == 0.0
    assert summarise([Trace(0.0, (1.0,))], 5).itl_p50_s == 0.0
