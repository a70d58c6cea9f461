from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.engine.fake_model import VOCAB, Bench, prompt_of
from tests.engine.fake_text import LETTERS, async_engine_of
from tokenmill.engine.async_engine import AsyncEngine
from tokenmill.engine.outputs import RequestOutput
from tokenmill.engine.sampling_params import RequestOutputKind, SamplingParams
from tokenmill.errors import EngineDeadError, RequestError

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def serve(
    test: Callable[[AsyncEngine], Coroutine[Any, Any, None]], bench: Bench | None = None
) -> Bench:
    """Run a test against an engine, and check that nothing is left of it."""
    bench = bench or Bench()
    engine = async_engine_of(bench)
    try:
        asyncio.run(test(engine))
    finally:
        engine.shutdown()
    return bench


async def collect(engine: AsyncEngine, *args: Any, **kwargs: Any) -> list[RequestOutput]:
    return [output async for output in engine.generate(*args, **kwargs)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_streams_grow_to_the_same_answer_whatever_they_hold() -> None:
    async def test(engine: AsyncEngine) -> None:
        def params(kind: RequestOutputKind) -> SamplingParams:
            return SamplingParams(
                temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1, output_kind=kind
            )

        whole = await collect(engine, "hello", params(RequestOutputKind.CUMULATIVE))
        parts = await collect(engine, "hello", params(RequestOutputKind.DELTA))
        final = await collect(engine, "hello", params(RequestOutputKind.FINAL_ONLY))
        last = whole[-1].outputs[0]
        assert len(final) == 1
        assert final[0].outputs == whole[-1].outputs
        assert [out.finished for out in whole] == [False] * (len(whole) - 1) + [True]
        assert "".join(out.outputs[0].text for out in parts) == last.text
        assert [t for out in parts for t in out.outputs[0].token_ids] == last.token_ids
        assert [e for out in parts for e in out.outputs[0].logprobs or ()] == last.logprobs
        assert last.text == "".join(LETTERS[t % 27] for t in last.token_ids)
        assert len(last.token_ids) == 12
        assert last.finish_reason == "length"
        assert last.logprobs is not None
        chosen = [entry[t] for t, entry in zip(last.token_ids, last.logprobs, strict=True)]
        assert last.cumulative_logprob == pytest.approx(sum(c.logprob for c in chosen))
        assert [c.decoded_token for c in chosen] == list(last.text)
        assert [c.rank for c in chosen] == [1] * 12
        metrics = whole[-1].metrics
        assert metrics is not None
        assert metrics.finished_time is not None
        assert metrics.first_token_time is not None
        assert metrics.first_scheduled_time is not None
        assert (
            metrics.arrival_time
            <= metrics.first_scheduled_time
            <= metrics.first_token_time
            <= metrics.finished_time
        )

    serve(test).assert_all_free()


def test_many_at_once_are_as_one_by_one() -> None:
    async def test(engine: AsyncEngine) -> None:
        prompts = [prompt_of(n, n) for n in (3, 20, 40, 70, 5, 33, 64, 12, 9, 80)]
        alone = [(await collect(engine, p, GREEDY))[-1].outputs for p in prompts]
        together = await asyncio.gather(*(collect(engine, p, GREEDY) for p in prompts))
        assert [outs[-1].outputs for outs in together] == alone
        assert together[3][-1].num_cached_tokens == 64

    serve(test).assert_all_free()


def test_n_answers_share_their_prompt() -> None:
    async def test(engine: AsyncEngine) -> None:
        params = SamplingParams(n=4, seed=3, max_tokens=8, ignore_eos=True)
        final = (await collect(engine, prompt_of(50), params))[-1]
        answers = [tuple(a.token_ids) for a in final.outputs]
        assert [a.index for a in final.outputs] == [0, 1, 2, 3]
        assert len(set(answers)) == 4
        stats = engine.stats()
        assert stats.prompt_tokens == 50 + 3 * 2
        assert stats.prefix_hits == 3 * 48
        again = (await collect(engine, prompt_of(50), params))[-1]
        assert again.outputs == final.outputs
        single = SamplingParams(seed=3, max_tokens=8, ignore_eos=True)
        alone = (await collect(engine, prompt_of(50), single))[-1]
        assert alone.outputs == final.outputs[:1]

    serve(test).assert_all_free()


def test_stop_texts_end_the_answer_and_free_its_memory() -> None:
    async def test(engine: AsyncEngine) -> None:
        long = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
        text = (await collect(engine, "abc", long))[-1].outputs[0].text
        stop = text[20:23]
        assert text.index(stop) == 20
        for include in (False, True):
            params = SamplingParams(
                temperature=0.0,
                max_tokens=200,
                ignore_eos=True,
                stop=[stop],
                include_stop_str_in_output=include,
            )
            answer = (await collect(engine, "abc", params))[-1].outputs[0]
            assert answer.text == text[: 23 if include else 20]
            assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
            assert len(answer.token_ids) == 23
        await until(lambda: engine.stats().running == 0)

    serve(test).assert_all_free()


def test_stop_tokens() -> None:
    async def test(engine: AsyncEngine) -> None:
        full = (await collect(engine, "abc", GREEDY))[-1].outputs[0]
        token = full.token_ids[5]
        at = full.token_ids.index(token)
        params = SamplingParams(temperature=0.0, stop_token_ids=[token])
        answer = (await collect(engine, "abc", params))[-1].outputs[0]
        assert answer.token_ids == full.token_ids[: at + 1]
        assert answer.text == full.text[:at]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", token)

    serve(test).assert_all_free()


def test_leaving_a_stream_frees_its_memory() -> None:
    async def test(engine: AsyncEngine) -> None:
        endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True, n=2)
        async for _ in engine.generate("abc", endless):
            break
        await until(lambda: engine.stats().cache_usage == 0)
        assert engine.stats().running == 0

    serve(test, Bench(max_model_len=4000, num_blocks=1000)).assert_all_free()


def test_cancelling_a_task_frees_its_memory() -> None:
    async def test(engine: AsyncEngine) -> None:
        endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        task = asyncio.create_task(collect(engine, "abc", endless))
        await until(lambda: engine.stats().running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: engine.stats().cache_usage == 0)

    serve(test, Bench(max_model_len=4000, num_blocks=1000)).assert_all_free()


def test_abort_ends_the_stream() -> None:
    async def test(engine: AsyncEngine) -> None:
        endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        task = asyncio.create_task(collect(engine, "abc", endless, "mine"))
        await until(lambda: engine.stats().generated_tokens > 3)
        await engine.abort("unknown")
        await engine.abort("mine")
        outputs = await task
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].finish_reason == "abort"
        await until(lambda: engine.stats().cache_usage == 0)

    serve(test, Bench(max_model_len=4000, num_blocks=1000)).assert_all_free()


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("", GREEDY, "no tokens"),
        ([], GREEDY, "no tokens"),
        ([VOCAB], GREEDY, f"token id {VOCAB}"),
        ([-1], GREEDY, "token id -1"),
        ([1.5], GREEDY, "list of token ids"),
        ({}, GREEDY, "needs 'prompt'"),
        ([5] * 512, GREEDY, "leaves no room"),
        ("abc", SamplingParams(stop_token_ids=[VOCAB]), "stop_token_ids"),
        ("abc", SamplingParams(logit_bias={VOCAB: 1.0}), "logit_bias"),
        ("abc", SamplingParams(allowed_token_ids=[VOCAB]), "allowed_token_ids"),
        ("abc", SamplingParams(logprobs=VOCAB + 1), "logprobs"),
        ([5] * 400, GREEDY, "cache blocks"),
    ],
)
def test_refusals_leave_others_alone(prompt: Any, params: SamplingParams, message: str) -> None:
    async def test(engine: AsyncEngine) -> None:
        other = asyncio.create_task(collect(engine, "hello", GREEDY))
        with pytest.raises(RequestError, match=message):
            await collect(engine, prompt, params)
        assert len((await other)[-1].outputs[0].token_ids) == 12

    serve(test, Bench(num_blocks=20)).assert_all_free()


def test_request_ids_are_unique_while_in_use() -> None:
    async def test(engine: AsyncEngine) -> None:
        first = engine.generate("abc", GREEDY, "same")
        await anext(first)
        with pytest.raises(RequestError, match="in use"):
            await collect(engine, "abc", GREEDY, "same")
        await first.aclose()
        assert (await collect(engine, "abc", GREEDY, "same"))[-1].finished

    serve(test).assert_all_free()


def test_cache_salt_separates_prefixes() -> None:
    async def test(engine: AsyncEngine) -> None:
        prompt = prompt_of(40)
        hits = []
        for salt in (None, None, "a", "b", "a"):
            out = (await collect(engine, prompt, GREEDY, cache_salt=salt))[-1]
            hits.append(out.num_cached_tokens)
        assert hits == [0, 32, 0, 0, 32]

    serve(test)


def test_an_internal_error_fails_everyone_and_marks_the_engine_dead() -> None:
    bench = Bench()
    forward, failing = bench.model.forward, threading.Event()

    def broken(*args: Any) -> Any:
        if failing.is_set():
            raise ValueError("broken weights")
        return forward(*args)

    bench.model.forward = broken  # type: ignore[method-assign]

    async def test(engine: AsyncEngine) -> None:
        endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        tasks = [asyncio.create_task(collect(engine, "abc", endless)) for _ in range(3)]
        await until(lambda: engine.stats().running == 3)
        failing.set()
        for task in tasks:
            with pytest.raises(EngineDeadError, match="broken weights"):
                await task
        assert engine.is_dead
        with pytest.raises(EngineDeadError, match="broken weights"):
            await collect(engine, "abc", GREEDY)

    serve(test, bench)


def test_shutdown_fails_what_is_left() -> None:
    async def test(engine: AsyncEngine) -> None:
        endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        task = asyncio.create_task(collect(engine, "abc", endless))
        await until(lambda: engine.stats().running == 1)
        await asyncio.to_thread(engine.shutdown)
        with pytest.raises(EngineDeadError, match="shut down"):
            await task

    serve(test, Bench(max_model_len=4000, num_blocks=1000))


def test_an_idle_engine_does_nothing() -> None:
    bench = Bench()
    step, calls = bench.engine.step, [0]

    def counted() -> Any:
        calls[0] += 1
        return step()

    bench.engine.step = counted  # type: ignore[method-assign]

    async def test(engine: AsyncEngine) -> None:
        await asyncio.sleep(0.02)
        assert calls == [0]
        await collect(engine, "abc", GREEDY)
        after = calls[0]
        assert after == 12
        await asyncio.sleep(0.02)
        assert calls == [after]

    serve(test, bench)


def test_a_closed_loop_does_not_harm_the_engine() -> None:
    """An event loop that ended in the middle of a request; another one takes over."""
    bench = Bench(max_model_len=4000, num_blocks=1000)
    engine = async_engine_of(bench)
    endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    loop = asyncio.new_event_loop()
    stream = engine.generate("abc", endless)
    loop.run_until_complete(anext(stream))
    loop.close()
    assert len(asyncio.run(collect(engine, "abc", GREEDY))[-1].outputs[0].token_ids) == 12
    assert not engine.is_dead
    engine.shutdown()


def test_memory_is_given_back_between_requests() -> None:
    bench = Bench()

    async def test(engine: AsyncEngine) -> None:
        prompt = prompt_of(40)
        before = (await collect(engine, prompt, GREEDY))[-1]
        assert (await collect(engine, prompt, GREEDY))[-1].num_cached_tokens == 32
        assert await engine.give_back_memory() > 0
        assert int(bench.runner.pool[1 << 13]) == 0  # a whole page that is zero, no longer UNREAD
        after = (await collect(engine, prompt, GREEDY))[-1]
        assert after.num_cached_tokens == 0
        assert after.outputs[0].token_ids == before.outputs[0].token_ids

    serve(test, bench).assert_all_free()


def test_memory_in_use_is_not_given_back() -> None:
    async def test(engine: AsyncEngine) -> None:
        stream = engine.generate("abc", GREEDY)
        await anext(stream)
        with pytest.raises(RequestError, match="not finished"):
            await engine.give_back_memory()
        assert len([output async for output in stream][-1].outputs[0].token_ids) == 12
        await asyncio.to_thread(engine.shutdown)
        with pytest.raises(EngineDeadError):
            await engine.give_back_memory()

    serve(test)


def test_tokens_can_be_watched() -> None:
    seen: list[float | None] = []

    async def test(engine: AsyncEngine) -> None:
        engine.watch(lambda outputs: seen.extend(output.interval_s for output in outputs))
        await collect(engine, "abc", GREEDY)

    serve(test)
    assert seen[0] is None
    assert len(seen) == 12
    assert all(interval is not None and interval > 0 for interval in seen[1:])


def test_a_step_that_hangs_shows() -> None:
    bench = Bench()
    forward, go_on = bench.model.forward, threading.Event()

    def hanging(*args: Any) -> Any:
        go_on.wait()
        return forward(*args)

    bench.model.forward = hanging  # type: ignore[method-assign]

    async def test(engine: AsyncEngine) -> None:
        assert engine.busy_s == 0
        task = asyncio.create_task(collect(engine, "abc", GREEDY))
        await until(lambda: engine.busy_s > 0.05)
        go_on.set()
        await task
        await until(lambda: engine.busy_s == 0)

    serve(test, bench)


def test_whatever_ends_the_thread_is_told() -> None:
    bench = Bench()

    def leaving(*args: Any) -> Any:
        raise SystemExit(1)

    bench.model.forward = leaving  # type: ignore[method-assign]

    async def test(engine: AsyncEngine) -> None:
        with pytest.raises(EngineDeadError, match="SystemExit"):
            await collect(engine, "abc", GREEDY)
        assert engine.is_dead
        assert engine.busy_s == 0

    serve(test, bench)


def test_leaving_frees_memory_within_one_step() -> None:
    bench = Bench(max_model_len=4000, num_blocks=1000)
    forward = bench.model.forward
    entered, go_on = threading.Semaphore(0), threading.Semaphore(1)

    def stepwise(*args: Any) -> Any:
        entered.release()
        go_on.acquire()
        return forward(*args)

    bench.model.forward = stepwise  # type: ignore[method-assign]

    async def test(engine: AsyncEngine) -> None:
        endless = SamplingParams(
            temperature=0.0, max_tokens=None, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        stream = engine.generate("abc", endless)
        await anext(stream)  # the first step has run
        await asyncio.to_thread(entered.acquire)
        await asyncio.to_thread(entered.acquire)  # the second is on its way
        assert engine.stats().cache_usage > 0
        await stream.aclose()
        go_on.release()  # that one ends, and there is none after it
        await until(lambda: engine.stats().running == 0)
        assert engine.stats().cache_usage == 0
        assert engine.stats().steps == 2
        go_on.release()

    serve(test, bench).assert_all_free()
