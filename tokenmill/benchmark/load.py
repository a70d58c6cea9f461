"""Puts requests on an engine and notes when its tokens come."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenmill.engine.outputs import RequestOutput
from tokenmill.engine.sampling_params import RequestOutputKind, SamplingParams


class BenchmarkedEngine(Protocol):
    """What is needed of an engine; ``AsyncEngine`` has it."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        ...

    def generate(
        self, prompt: list[int], sampling_params: SamplingParams
    ) -> AsyncIterator[RequestOutput]:
        """Answers as they grow."""
        ...


@dataclass(frozen=True)
class Trace:
    """When a request was sent, and when each of its tokens came; seconds on the same clock."""

    sent: float
    tokens: tuple[float, ...]


@dataclass(frozen=True)
class Run:
    """Requests that were sent at once.

    decode_tok_s: tokens generated a second while all of them were decoding (see ``decode_rate``).
    total_tok_s: tokens of prompts and answers a second, from first to last.
    ttft_p50_s: median time to the first token. itl_p50_s: median time between two tokens of an answer.
    """

    concurrency: int
    decode_tok_s: float
    total_tok_s: float
    ttft_p50_s: float
    itl_p50_s: float


class Prompts:
    """Random prompts, no two with the same beginning, so that no cache helps. The same every time."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._random = random.Random(1)

    def take(self, length: int) -> list[int]:
        """Token ids [length]."""
        return [self._random.randrange(self._vocab_size) for _ in range(length)]


async def trace(
    engine: BenchmarkedEngine,
    prompt: list[int],
    gen_tokens: int,
    on_output: Callable[[], None] = lambda: None,
) -> Trace:
    """Send one request; it gets exactly ``gen_tokens`` tokens, greedily. on_output: called whenever
    tokens came.
    """
    params = SamplingParams(
        temperature=0.0,
        max_tokens=gen_tokens,
        ignore_eos=True,
        detokenize=True,
        output_kind=RequestOutputKind.DELTA,
    )
    sent = time.perf_counter()
    times: list[float] = []
    async for out in engine.generate(prompt, params):
        times += [time.perf_counter()] * len(out.outputs[0].token_ids)
        on_output()
    return Trace(sent, tuple(times))


async def run_at_once(
    engine: BenchmarkedEngine,
    prompts: Sequence[list[int]],
    gen_tokens: int,
    on_output: Callable[[], None] = lambda: None,
) -> list[Trace]:
    """Send all prompts at the same moment. on_output: called whenever tokens came."""
    return list(
        await asyncio.gather(*(trace(engine, prompt, gen_tokens, on_output) for prompt in prompts))
    )


def summarise(traces: Sequence[Trace], prompt_tokens: int) -> Run:
    """Figures of requests that ran at once. prompt_tokens: of each."""
    begun = min(t.sent for t in traces)
    ended = max(t.tokens[-1] for t in traces)
    generated = sum(len(t.tokens) for t in traces)
    gaps = [
        later - earlier for t in traces for earlier, later in zip(t.tokens, t.tokens[1:], strict=False)
    ]
    return Run(
        concurrency=len(traces),
        decode_tok_s=decode_rate(traces),
        total_tok_s=(generated + prompt_tokens * len(traces)) / max(ended - begun, 1e-9),
        ttft_p50_s=statistics.median(t.tokens[0] - t.sent for t in traces),
        itl_p50_s=statistics.median(gaps) if gaps else 0.0,
    )


def decode_rate(traces: Sequence[Trace]) -> float:
    """Tokens a second between the moment when the last request got its first token and the moment when
    the first request ended: then nothing but decoding went on, for all of them. If there is no such
    time (long prompts, short answers), the tokens after each request's first over the time they took.
    """
    start = max(t.tokens[0] for t in traces)
    end = min(t.tokens[-1] for t in traces)
    inside = sum(1 for t in traces for moment in t.tokens if start < moment <= end)
    if end > start and inside >= len(traces):
        return inside / (end - start)
    start = min(t.tokens[0] for t in traces)
    end = max(t.tokens[-1] for t in traces)
    later = sum(len(t.tokens) - 1 for t in traces)
    return later / (end - start) if end > start else 0.0


def run_values(run: Run) -> dict[str, Any]:
    """For JSON."""
    return {
        "concurrency": run.concurrency,
        "decode_tok_s": run.decode_tok_s,
        "total_tok_s": run.total_tok_s,
        "ttft_p50_s": run.ttft_p50_s,
        "itl_p50_s": run.itl_p50_s,
    }
