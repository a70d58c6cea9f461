"""Budgets, fairness, order, preemption and admission, seen from outside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.fake_model import Bench, prompt_of
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.errors import ConfigError, RequestError


def greedy(max_tokens: int, **kwargs: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **kwargs)


def test_a_long_prompt_delays_nobody() -> None:
    """Running requests get a token in every step, and no step is larger than its budget."""
    bench = Bench(max_tokens=24)
    bench.add("a", prompt_of(5, 1), greedy(60))
    bench.add("b", prompt_of(9, 2), greedy(60))
    bench.step()
    bench.add("long", prompt_of(400, 3), greedy(5))
    for _ in range(15):
        bench.step()
    for name in ("a", "b"):
        assert bench.results[name].token_steps == list(range(1, 17))
    assert max(bench.model.steps) == 24
    # The prompt advanced with everything that was left of each step.
    assert set(bench.model.steps[1:]) == {24}


def test_several_prompts_share_a_step() -> None:
    bench = Bench(max_tokens=64)
    for seed in range(4):
        bench.add(str(seed), prompt_of(16, seed), greedy(2))
    bench.step()
    assert bench.model.steps == [64]
    assert all(len(r.tokens) == 1 for r in bench.results.values())


def test_first_come_first_served() -> None:
    bench = Bench(max_seqs=1)
    for name in ("a", "b", "c"):
        bench.add(name, prompt_of(4, ord(name)), greedy(3), priority=-ord(name))
    bench.run()
    assert [bench.results[n].token_steps[0] for n in ("a", "b", "c")] == [1, 4, 7]


def test_the_lowest_priority_value_goes_first_and_takes_places() -> None:
    bench = Bench(max_seqs=1, policy="priority")
    bench.add("background", prompt_of(20, 1), greedy(12), priority=5)
    bench.step()
    bench.add("low", prompt_of(4, 2), greedy(3), priority=9)
    bench.add("urgent", prompt_of(4, 3), greedy(3), priority=0)
    bench.run()
    steps = {name: result.token_steps for name, result in bench.results.items()}
    assert steps["urgent"] == [2, 3, 4]
    assert steps["background"][1] == 5
    assert steps["low"][0] > steps["background"][-1]
    assert bench.engine.stats().preemptions == 1


def test_the_latest_request_is_preempted_and_resumes_from_the_cache() -> None:
    bench = Bench(num_blocks=8, max_tokens=64)
    bench.add("first", prompt_of(40, 1), greedy(60))
    bench.add("second", prompt_of(40, 2), greedy(60))
    bench.run()
    stats = bench.engine.stats()
    assert stats.preemptions > 0
    assert bench.results["first"].token_steps == list(range(1, 61))
    assert len(bench.results["second"].tokens) == 60
    bench.assert_all_free()


def test_a_waiting_request_does_not_start_before_it_fits() -> None:
    """Its prompt has room for all of it, beside what the running ones still have to compute."""
    bench = Bench(num_blocks=10, max_tokens=16)
    bench.add("a", prompt_of(96, 1), greedy(1))
    bench.add("b", prompt_of(96, 2), greedy(1))
    bench.run()
    assert bench.engine.stats().preemptions == 0
    assert bench.results["b"].token_steps[0] == bench.results["a"].token_steps[0] + 6


def test_a_request_that_can_never_fit_is_refused() -> None:
    bench = Bench(num_blocks=8)
    with pytest.raises(RequestError, match=r"needs 9 cache blocks for 144 tokens.*lower max_tokens"):
        bench.add("big", prompt_of(100), greedy(44))
    bench.add("fits", prompt_of(100), greedy(28))
    assert len(bench.run()["fits"].tokens) == 28


def test_answers_end_at_max_model_len() -> None:
    bench = Bench(max_model_len=64)
    bench.add("open", prompt_of(30), greedy(1000))
    bench.add("none", prompt_of(30), SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True))
    results = bench.run()
    assert len(results["open"].tokens) == len(results["none"].tokens) == 34
    assert results["open"].reason == results["none"].reason == "length"


def test_followers_wait_for_their_leaders_prompt() -> None:
    bench = Bench(max_tokens=16)
    bench.add("lead", prompt_of(57), greedy(4))
    for name in ("x", "y"):
        bench.add(name, prompt_of(57), greedy(4), leader="lead")
    bench.add("other", prompt_of(5, 9), greedy(4))
    results = bench.run()
    assert results["x"].cached == results["y"].cached == 48
    assert bench.engine.stats().prompt_tokens == 57 + 2 * 9 + 5
    # Who waits for a leader lets others pass.
    assert results["other"].token_steps[0] < results["x"].token_steps[0]
    assert results["x"].tokens == results["lead"].tokens


def test_followers_go_on_when_their_leader_is_aborted() -> None:
    bench = Bench(max_tokens=16)
    bench.add("lead", prompt_of(60), greedy(4))
    bench.add("x", prompt_of(60), greedy(4), leader="lead")
    bench.step()
    assert bench.engine.abort("lead")
    assert len(bench.run()["x"].tokens) == 4
    bench.assert_all_free()


def test_prompt_logprobs_keep_within_the_rows_of_logits() -> None:
    bench = Bench(max_tokens=64, max_seqs=4, spare_logits=6)
    for seed in range(3):
        bench.add(str(seed), prompt_of(30, seed), greedy(3, prompt_logprobs=1))
    bench.add("plain", prompt_of(30, 9), greedy(3))
    results = bench.run()
    for seed in range(3):
        entries = results[str(seed)].prompt_logprobs
        assert entries is not None
        assert entries[0] is None
        assert [e[0].token_id for e in entries[1:] if e] == prompt_of(30, seed)[1:]
        assert all(e and len(e) == 2 for e in entries[1:])
    assert results["plain"].prompt_logprobs is None


def test_prompt_logprobs_of_one_token() -> None:
    bench = Bench()
    bench.add("one", [5], greedy(1, prompt_logprobs=3))
    assert bench.run()["one"].prompt_logprobs == [None]


def test_abort_frees_at_once_wherever_the_request_is() -> None:
    bench = Bench(max_tokens=16, max_seqs=2)
    for name in ("prefilling", "waiting"):
        bench.add(name, prompt_of(60, len(name)), greedy(4))
    bench.add("third", prompt_of(10), greedy(2))
    bench.step()
    assert bench.engine.abort("prefilling")
    assert bench.engine.abort("third")
    assert bench.engine.abort("waiting")
    assert not bench.engine.abort("waiting")
    bench.assert_all_free()
    assert not bench.engine.has_work
    assert bench.engine.step() == []
    assert bench.engine.stats().finished == {"abort": 3}


def test_min_tokens_hold_back_the_end() -> None:
    bench = Bench()
    bench.add("free", prompt_of(10), SamplingParams(temperature=0.0, max_tokens=300))
    ending = bench.run()["free"].tokens[0]
    bench.add("eos", prompt_of(10), SamplingParams(temperature=0.0), eos_ids=frozenset({ending}))
    bench.add(
        "later",
        prompt_of(10),
        SamplingParams(temperature=0.0, min_tokens=5, max_tokens=30),
        eos_ids=frozenset({ending}),
    )
    bench.add(
        "ignored",
        prompt_of(10),
        SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=8),
        eos_ids=frozenset({ending}),
    )
    results = bench.run()
    assert (results["eos"].tokens, results["eos"].reason) == ([ending], "stop")
    assert results["eos"].stop_reason is None
    assert len(results["later"].tokens) >= 5
    assert ending not in results["later"].tokens[:5]
    assert len(results["ignored"].tokens) == 8
    assert results["ignored"].tokens[0] == ending


def test_a_recorded_program_is_recorded_once_and_replayed() -> None:
    class Recorder:
        recorded = replayed = 0

        def record(self, forward: Any) -> Any:
            self.recorded += 1

            def run() -> None:
                self.replayed += 1
                forward()

            forward()
            return SimpleNamespace(run=run)

    plain = Bench()
    recorder = Recorder()
    recording = Bench(recorder=recorder)
    for bench in (plain, recording):
        bench.add("a", prompt_of(70), greedy(10))
    assert recording.run()["a"].tokens == plain.run()["a"].tokens
    assert recorder.recorded == 1
    assert recorder.replayed == recording.num_steps


def test_the_clock_counts_every_part_of_a_step() -> None:
    bench = Bench()
    bench.add("a", prompt_of(70), greedy(10))
    bench.run()
    parts = bench.engine.runner.clock.total_ns
    assert set(parts) == {"schedule", "fill", "forward", "sample", "append"}
    assert all(spent > 0 for spent in parts.values())


def test_only_recorded_steps_can_be_profiled() -> None:
    bench = Bench()
    bench.add("a", prompt_of(70), greedy(2))
    bench.run()
    with pytest.raises(ConfigError, match="only native operators can be profiled"):
        bench.engine.runner.profile()


def test_a_model_that_cannot_be_recorded_is_run() -> None:
    class Recorder:
        def record(self, forward: Any) -> None:
            return None

    bench = Bench(recorder=Recorder())
    bench.add("a", prompt_of(70), greedy(10))
    plain = Bench()
    plain.add("a", prompt_of(70), greedy(10))
    assert bench.run()["a"].tokens == plain.run()["a"].tokens


def test_a_block_that_is_not_full_is_not_found() -> None:
    """A request that ends in the middle of its prompt leaves only whole blocks to others."""
    bench = Bench(max_tokens=24)
    bench.add("ends", prompt_of(60), greedy(4))
    bench.step()
    assert bench.engine.abort("ends")
    bench.poison()
    bench.add("next", prompt_of(60), greedy(4))
    fresh = Bench()
    fresh.add("next", prompt_of(60), greedy(4))
    result = bench.run()["next"]
    assert result.cached == 16
    assert result.tokens == fresh.run()["next"].tokens


def test_answers_are_found_by_the_next_turn() -> None:
    bench = Bench()
    bench.add("first", prompt_of(40), greedy(30))
    answer = bench.run()["first"].tokens
    turn = prompt_of(40) + answer + prompt_of(7, 5)
    bench.add("second", turn, greedy(5))
    # The last token of the answer was never computed: 69 tokens are four whole blocks.
    result = bench.run()["second"]
    assert result.cached == 64
    fresh = Bench()
    fresh.add("second", turn, greedy(5))
    assert result.tokens == fresh.run()["second"].tokens
