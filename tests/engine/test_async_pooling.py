"""Vectors from the asyncio front."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.fake_model import Bench, prompt_of
from tests.engine.fake_text import LetterTokenizer, async_engine_of
from tokenmill.engine.async_engine import LONG_TEXT
from tokenmill.engine.pooling import PoolingParams
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.errors import EngineDeadError, RequestError


def test_many_at_once_beside_answers() -> None:
    bench = Bench(max_tokens=16, max_seqs=4)
    engine = async_engine_of(bench)
    prompts = [prompt_of(n, n) for n in (60, 3, 20, 150)]

    async def answer() -> int:
        params = SamplingParams(max_tokens=30, ignore_eos=True)
        return sum([len(out.outputs[0].token_ids) async for out in engine.generate([5, 6, 7], params)])

    async def main() -> None:
        vectors, tokens = await asyncio.gather(
            asyncio.gather(*(engine.embed(p, PoolingParams("mean")) for p in prompts)), answer()
        )
        assert tokens > 0
        for prompt, together in zip(prompts, vectors, strict=True):
            alone = await engine.embed(prompt, PoolingParams("mean"))
            assert alone.outputs == together.outputs
            assert together.prompt_token_ids == prompt
            assert together.metrics.finished_time is not None
        named = await engine.embed("abc", request_id="mine")
        assert named.request_id == "mine"
        assert named.prompt_token_ids == LetterTokenizer().encode("abc")

    asyncio.run(main())
    engine.shutdown()
    bench.assert_all_free()


def test_what_is_refused_is_raised() -> None:
    bench = Bench(num_blocks=4)
    engine = async_engine_of(bench)

    async def main() -> None:
        with pytest.raises(RequestError, match="no tokens"):
            await engine.embed("")
        with pytest.raises(RequestError, match="dimensions"):
            await engine.embed("abc", PoolingParams(dimensions=1000))
        with pytest.raises(RequestError, match="cache blocks"):
            await engine.embed(prompt_of(200))
        with pytest.raises(RequestError, match="more than max_model_len"):
            await engine.embed("a" * (LONG_TEXT + 1))
        assert (await engine.embed("abc")).finished

    asyncio.run(main())
    engine.shutdown()


def test_cancelling_frees_the_memory() -> None:
    bench = Bench(max_tokens=4)
    engine = async_engine_of(bench)

    async def main() -> None:
        task = asyncio.create_task(engine.embed(prompt_of(400)))
        while engine.stats().running == 0:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.embed("abc")

    asyncio.run(main())
    engine.shutdown()
    assert bench.engine.stats().finished == {"abort": 1, "stop": 1}
    bench.assert_all_free()


def test_a_dead_engine() -> None:
    bench = Bench(max_tokens=4)
    engine = async_engine_of(bench)

    async def main() -> None:
        task = asyncio.create_task(engine.embed(prompt_of(400)))
        while engine.stats().running == 0:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.shutdown)
        with pytest.raises(EngineDeadError, match="shut down"):
            await task
        with pytest.raises(EngineDeadError, match="shut down"):
            await engine.embed("abc")

    asyncio.run(main())
