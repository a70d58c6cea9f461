"""The whole measurement of one model, as ``tokenmill bench`` prints it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenmill.benchmark.load import Prompts, Trace, run_at_once, run_values, summarise, trace
from tokenmill.benchmark.memory import peak_rss_bytes, rss_bytes
from tokenmill.benchmark.work import TokenWork, token_work
from tokenmill.errors import ConfigError

if TYPE_CHECKING:
    from tokenmill.config import EngineConfig
    from tokenmill.engine.async_engine import AsyncEngine
    from tokenmill.engine.build import BuiltEngine
    from tokenmill.hardware.ceilings import Ceilings


@dataclass(frozen=True)
class BenchmarkPlan:
    """What is measured.

    prompt_tokens: of each request. gen_tokens: generated for each. concurrency: requests at once, one
    run each. contexts: lengths of prompts after which decoding one sequence is measured.
    ceilings: whether the machine's own limits are measured too.
    """

    prompt_tokens: int = 512
    gen_tokens: int = 64
    concurrency: tuple[int, ...] = (1, 4, 16)
    contexts: tuple[int, ...] = ()
    ceilings: bool = True


def measure(
    config: EngineConfig, plan: BenchmarkPlan, report: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Load the model, measure it, and return the figures under the names of ``tokenmill bench --json``.

    report: told what happens next. Raises what ``build_engine`` raises, and ConfigError if the prompts
    don't fit the model.
    """
    from tokenmill.engine.async_engine import AsyncEngine

    report("loading")
    libraries_rss = rss_bytes()
    started = time.perf_counter()
    engine = AsyncEngine.from_config(config)
    load_s = time.perf_counter() - started
    try:
        check_lengths(max(plan.prompt_tokens, *plan.contexts, 0), plan.gen_tokens, engine.max_model_len)
        result = asyncio.run(_measure_engine(engine, plan, report))
        built = engine.built
        assert built is not None
        threads = built.threads
        work = token_work(built.checkpoint, config.load.quantization)
    finally:
        engine.shutdown()
    result = {
        "model": config.load.model,
        "prompt_tokens": plan.prompt_tokens,
        "gen_tokens": plan.gen_tokens,
        "threads": threads.count,
        "load_s": load_s,
        **result,
        "work": {
            "weight_bytes": work.weight_bytes,
            "prefill_ops": work.prefill_ops,
            "quantised": work.quantised,
        },
        "libraries_rss_bytes": libraries_rss,
        "cache_bytes": built.memory.pool_bytes,
        # Before the ceilings are measured, which takes memory of its own.
        "peak_rss_bytes": peak_rss_bytes(),
        "ceilings": None,
        "share": None,
    }
    if plan.ceilings:
        report("measuring the machine's ceilings")
        found = measure_ceilings_of(built)
        result["ceilings"] = ceilings_values(found)
        result["share"] = shares(result, work, found)
    return result


def check_lengths(prompt_tokens: int, gen_tokens: int, max_model_len: int) -> None:
    """Raises ConfigError if prompts and answers of these lengths don't fit the model."""
    if prompt_tokens + gen_tokens > max_model_len:
        raise ConfigError(
            f"prompt and answer have {prompt_tokens + gen_tokens} tokens, but the model serves "
            f"{max_model_len}; lower --prompt-tokens or --gen-tokens"
        )


def ceilings_values(ceilings: Ceilings) -> dict[str, Any]:
    """For JSON."""
    return {
        "read_bytes_s": ceilings.read_bytes_s,
        "fp32_ops_s": ceilings.fp32_ops_s,
        "int8_ops_s": ceilings.int8_ops_s,
        "measured_by": ceilings.measured_by,
    }


async def _measure_engine(
    engine: AsyncEngine, plan: BenchmarkPlan, report: Callable[[str], None]
) -> dict[str, Any]:
    prompts = Prompts(engine.vocab_size)
    # The first request of an engine pays for pages touched and steps recorded for the first time.
    first = await trace(engine, prompts.take(plan.prompt_tokens), 2)
    report("measuring the prompt")
    alone = await _prefill(engine, prompts, plan.prompt_tokens)
    runs = []
    for concurrency in plan.concurrency:
        report(f"measuring {concurrency} at once")
        batch = [prompts.take(plan.prompt_tokens) for _ in range(concurrency)]
        runs.append(summarise(await run_at_once(engine, batch, plan.gen_tokens), plan.prompt_tokens))
    contexts = []
    for length in plan.contexts:
        report(f"measuring a context of {length} tokens")
        run = summarise(await run_at_once(engine, [prompts.take(length)], plan.gen_tokens), length)
        contexts.append({"tokens": length, "decode_tok_s": run.decode_tok_s})
    return {
        "ttft_s": first.tokens[0] - first.sent,
        "prefill_tok_s": plan.prompt_tokens / alone,
        "runs": [run_values(run) for run in runs],
        "contexts": contexts,
    }


async def _prefill(engine: AsyncEngine, prompts: Prompts, length: int) -> float:
    """Median seconds from sending a prompt to its first token, of three."""
    traces: list[Trace] = [await trace(engine, prompts.take(length), 1) for _ in range(3)]
    return sorted(t.tokens[0] - t.sent for t in traces)[1]


def shares(result: dict[str, Any], work: TokenWork, ceilings: Ceilings) -> dict[str, float | None]:
    """What share of the machine's ceilings was reached.

    decode_read: weights read while one sequence decodes, of the memory's read bandwidth (None without a
    run of concurrency 1). prefill_int8, prefill_fp32: the prompt's matrix products, of the arithmetic
    ceiling; only the one whose arithmetic most of the weights need is given, the other is None.
    """
    alone = [run["decode_tok_s"] for run in result["runs"] if run["concurrency"] == 1]
    ops_s = result["prefill_tok_s"] * work.prefill_ops
    int8 = ops_s / ceilings.int8_ops_s if work.quantised and ceilings.int8_ops_s else None
    return {
        "decode_read": alone[0] * work.weight_bytes / ceilings.read_bytes_s if alone else None,
        "prefill_int8": int8,
        "prefill_fp32": None if work.quantised else ops_s / ceilings.fp32_ops_s,
    }


def measure_ceilings_of(built: BuiltEngine) -> Ceilings:
    """What this machine can do with an engine's threads, in native loops if its operators are."""
    from tokenmill.cache.memory import available_memory
    from tokenmill.hardware.ceilings import BUFFER_BYTES, measure_ceilings
    from tokenmill.hardware.topology import read_topology

    cached = max((c.size_bytes * c.instances for c in read_topology().caches), default=0)
    # Twice the largest cache, so that most reads come from memory, but not all of the memory.
    wanted = max(BUFFER_BYTES, 2 * cached)
    buffer_bytes = max(min(wanted, available_memory() // 4), 64 << 20)
    return measure_ceilings(
        built.threads.count,
        built.threads.cpus,
        native=built.operators.native is not None,
        buffer_bytes=buffer_bytes,
    )
