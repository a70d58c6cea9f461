"""Where the time of a step goes: operator by operator, and Python's share of it."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenmill.benchmark.load import Prompts, run_at_once
from tokenmill.benchmark.measure import ceilings_values, check_lengths, measure_ceilings_of
from tokenmill.engine.request import EngineRequest
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.ops.table import OpParams, operator_name
from tokenmill.ops.work import StepShape, Work, work_of

if TYPE_CHECKING:
    from tokenmill.config import EngineConfig
    from tokenmill.engine.async_engine import AsyncEngine
    from tokenmill.engine.core import Engine
    from tokenmill.engine.runner import Runner
    from tokenmill.hardware.ceilings import Ceilings

PARTS = ("schedule", "fill", "sample", "append")
"""What the engine's thread does in a step besides the model's forward."""


@dataclass(frozen=True)
class ProfilePlan:
    """prompt_tokens: of the prompts. gen_tokens: generated while Python's share is measured.

    concurrency: sequences of the decode steps, one profile for each. repeats: each operator's time is
    the median of so many runs.
    """

    prompt_tokens: int = 512
    gen_tokens: int = 64
    concurrency: tuple[int, ...] = (1,)
    repeats: int = 15


def profile(
    config: EngineConfig, plan: ProfilePlan, report: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Load a model and profile a prefill step and decode steps.

    The figures are those of ``tokenmill bench --profile --json``. Raises what ``build_engine`` raises,
    and ConfigError if the prompts don't fit or the model does not run on native operators alone.
    """
    from tokenmill.engine.async_engine import AsyncEngine

    report("loading")
    engine = AsyncEngine.from_config(config)
    built = engine.built
    assert built is not None
    prompts = Prompts(engine.vocab_size)
    try:
        check_lengths(plan.prompt_tokens, plan.gen_tokens, engine.max_model_len)
        shares = {}
        for count in plan.concurrency:
            report(f"measuring Python's share of {count} at once")
            shares[count] = asyncio.run(_python_share(engine, prompts, count, plan))
    finally:
        engine.shutdown()
    report("measuring the machine's ceilings")
    ceilings = measure_ceilings_of(built)
    bound = built.operators.table.bound
    report("profiling")
    # The engine's own thread has ended, so this one may step.
    core = built.engine
    _run_until_decoding(core, [prompts.take(plan.prompt_tokens)])
    steps = [{"step": "prefill", **_last_step(core.runner, bound, ceilings, plan), "python": None}]
    for count in plan.concurrency:
        _run_until_decoding(core, [prompts.take(plan.prompt_tokens) for _ in range(count)])
        core.step()
        found = _last_step(core.runner, bound, ceilings, plan)
        steps.append({"step": "decode", **found, "python": shares[count]})
    native = built.operators.native
    return {
        "model": config.load.model,
        "threads": built.threads.count,
        "kernels": native.kernels if native is not None else None,
        "ceilings": ceilings_values(ceilings),
        "steps": steps,
    }


def _run_until_decoding(engine: Engine, prompts: Sequence[list[int]]) -> None:
    """Drop all requests, and take new ones through their prompts: the next step decodes all of them."""
    for request_id in engine.request_ids:
        engine.abort(request_id)
    # Each token of a prompt may take a step; nobody must end before the last begins.
    longest = sum(map(len, prompts)) + 2
    params = SamplingParams(temperature=0.0, max_tokens=longest, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        engine.add_request(EngineRequest(f"profile-{index}", prompt, params, seed=0))
    waiting = {f"profile-{index}" for index in range(len(prompts))}
    while waiting:
        waiting -= {output.request_id for output in engine.step()}


async def _python_share(
    engine: AsyncEngine, prompts: Prompts, count: int, plan: ProfilePlan
) -> dict[str, float] | None:
    """What Python takes of a step while ``count`` requests decode, as users' requests do.

    None if they never all decoded at once.
    """
    assert engine.built is not None
    clock = engine.built.engine.runner.clock
    noted: list[tuple[float, int, dict[str, int]]] = []

    def note() -> None:
        noted.append((time.perf_counter(), engine.stats().steps, dict(clock.total_ns)))

    texts = [prompts.take(plan.prompt_tokens) for _ in range(count)]
    traces = await run_at_once(engine, texts, plan.gen_tokens, note)
    begin, end = max(t.tokens[0] for t in traces), min(t.tokens[-1] for t in traces)
    inside = [entry for entry in noted if begin <= entry[0] <= end]
    if len(inside) < 2 or inside[-1][1] == inside[0][1]:
        return None
    (started, first, before), (ended, last, after) = inside[0], inside[-1]
    steps = last - first
    return python_share(
        (ended - started) / steps, {part: (after[part] - before[part]) / steps for part in after}
    )


def python_share(step_s: float, part_ns: dict[str, float]) -> dict[str, float]:
    """What of a step is not the model's forward.

    step_s: seconds from one step to the next. part_ns: nanoseconds of a step's parts.
    other_s: what lies between steps, that is handing tokens over, taking orders, waiting for the
    interpreter.
    """
    parts = {f"{part}_s": part_ns[part] / 1e9 for part in PARTS}
    forward = part_ns["forward"] / 1e9
    inside = forward + sum(parts.values())
    step_s = max(step_s, inside)
    return {
        "step_s": step_s,
        "forward_s": forward,
        **parts,
        "other_s": step_s - inside,
        "share": 1 - forward / step_s if step_s else 0.0,
    }


def _last_step(
    runner: Runner, bound: Sequence[OpParams], ceilings: Ceilings, plan: ProfilePlan
) -> dict[str, Any]:
    """The last step, run again ``plan.repeats`` times."""
    shape = runner.last_shape()
    return {
        "sequences": len(shape.spans),
        "tokens": shape.tokens,
        "context": max(last for _, last in shape.spans) + 1,
        **describe_step([runner.profile() for _ in range(plan.repeats)], bound, shape, ceilings),
    }


def describe_step(
    runs: Sequence[Sequence[tuple[str, int]]],
    bound: Sequence[OpParams],
    shape: StepShape,
    ceilings: Ceilings,
) -> dict[str, Any]:
    """A step's operators, those of one name added up, the slowest first.

    runs: of the same step, each operator's name and nanoseconds. bound: the declared operators, whose
    names say which work belongs to which time.
    """
    work: dict[str, Work] = {}
    for params in bound:
        name = operator_name(params)
        work[name] = work.get(name, Work()) + work_of(params, shape)
    names = list(dict.fromkeys(name for name, _ in runs[0]))
    calls = {name: sum(1 for other, _ in runs[0] if other == name) for name in names}
    seconds = {
        name: statistics.median(sum(ns for other, ns in run if other == name) for run in runs) / 1e9
        for name in names
    }
    total = sum(seconds.values())
    operators = [
        {
            "name": name,
            "calls": calls[name],
            "seconds": seconds[name],
            "share": seconds[name] / total if total else 0.0,
            **_rates(work.get(name, Work()), seconds[name], ceilings),
        }
        for name in sorted(names, key=lambda name: -seconds[name])
    ]
    everything = sum((work.get(name, Work()) for name in names), Work())
    return {"seconds": total, **_rates(everything, total, ceilings), "operators": operators}


def _rates(work: Work, seconds: float, ceilings: Ceilings) -> dict[str, Any]:
    """Work a second, and how close that is to the nearer of the two ceilings."""
    read_s, ops_s = (work.bytes_read / seconds, work.operations / seconds) if seconds else (0.0, 0.0)
    limit = ceilings.int8_ops_s if work.arithmetic == "int8" else ceilings.fp32_ops_s
    reached = {
        "read": read_s / ceilings.read_bytes_s,
        work.arithmetic: ops_s / limit if limit else 0.0,
    }
    bound = max(reached, key=lambda kind: reached[kind])
    return {
        "bytes_read": work.bytes_read,
        "operations": work.operations,
        "read_bytes_s": read_s,
        "ops_s": ops_s,
        "bound": bound if reached[bound] else None,
        "of_ceiling": reached[bound] or None,
    }
