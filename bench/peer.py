"""What the workers of other engines share: the work, the clock, and the JSON of ``tokenmill bench``.

Imports nothing but the standard library, since every engine has an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Task:
    """What a worker is asked to do. max_seqs, max_len: the texts that it must hold at once."""

    model: str
    threads: int
    prompt_tokens: int
    gen_tokens: int
    concurrency: tuple[int, ...]
    contexts: tuple[int, ...]
    first_token: bool

    @property
    def max_seqs(self) -> int:
        """Texts at once."""
        return max(self.concurrency)

    @property
    def max_len(self) -> int:
        """Tokens of the longest text."""
        return max(self.prompt_tokens, *self.contexts, 0) + self.gen_tokens


@dataclass(frozen=True)
class Times:
    """sent: when prompts were given; tokens: when each text's tokens came. Seconds on one clock."""

    sent: float
    tokens: list[list[float]]


class Peer(Protocol):
    """An engine with its model."""

    vocab_size: int

    def run(self, prompts: list[list[int]], gen_tokens: int) -> Times:
        """Answers all prompts at once, greedily, with exactly ``gen_tokens`` tokens each."""
        ...


class StepPeer:
    """An engine that is driven call by call: prompts one by one, then a token of each text a step."""

    vocab_size: int

    def clear(self) -> None:
        """Forget all texts."""
        raise NotImplementedError

    def prefill(self, seq: int, prompt: list[int]) -> int:
        """Read a prompt; the likeliest next token."""
        raise NotImplementedError

    def step(self, position: int, tokens: list[int]) -> list[int]:
        """One token of each text, all at ``position``; the likeliest next tokens."""
        raise NotImplementedError

    def run(self, prompts: list[list[int]], gen_tokens: int) -> Times:
        """As ``Peer.run``."""
        self.clear()
        sent = time.perf_counter()
        times: list[list[float]] = []
        tokens = []
        for seq, prompt in enumerate(prompts):
            tokens.append(self.prefill(seq, prompt))
            times.append([time.perf_counter()])
        for position in range(len(prompts[0]), len(prompts[0]) + gen_tokens - 1):
            tokens = self.step(position, tokens)
            now = time.perf_counter()
            for own in times:
                own.append(now)
        return Times(sent, times)


class Prompts:
    """The same random tokens as tokenmill's benchmark takes."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._random = random.Random(1)

    def take(self, length: int) -> list[int]:
        """Token ids [length]."""
        return [self._random.randrange(self._vocab_size) for _ in range(length)]


def decode_rate(times: Times) -> float:
    """Tokens a second while all texts decode, as ``tokenmill bench`` counts them."""
    start = max(own[0] for own in times.tokens)
    end = min(own[-1] for own in times.tokens)
    inside = sum(1 for own in times.tokens for moment in own if start < moment <= end)
    if end > start and inside >= len(times.tokens):
        return inside / (end - start)
    start, end = min(own[0] for own in times.tokens), max(own[-1] for own in times.tokens)
    return sum(len(own) - 1 for own in times.tokens) / (end - start) if end > start else 0.0


def summarise(times: Times, prompt_tokens: int) -> dict[str, Any]:
    """Figures of texts that ran at once."""
    end = max(own[-1] for own in times.tokens)
    gaps = [b - a for own in times.tokens for a, b in pairwise(own)]
    total = sum(prompt_tokens + len(own) for own in times.tokens)
    return {
        "concurrency": len(times.tokens),
        "decode_tok_s": decode_rate(times),
        "total_tok_s": total / (end - times.sent),
        "ttft_p50_s": statistics.median(own[0] - times.sent for own in times.tokens),
        "itl_p50_s": statistics.median(gaps) if gaps else 0.0,
    }


def measure(peer: Peer, task: Task) -> dict[str, Any]:
    """All figures but those of loading."""
    prompts = Prompts(peer.vocab_size)

    def first_token() -> float:
        times = peer.run([prompts.take(task.prompt_tokens)], 1)
        return times.tokens[0][0] - times.sent

    ttft = first_token()
    alone = statistics.median(first_token() for _ in range(3))
    runs = [
        summarise(
            peer.run([prompts.take(task.prompt_tokens) for _ in range(count)], task.gen_tokens),
            task.prompt_tokens,
        )
        for count in task.concurrency
    ]
    peak = peak_rss_bytes()
    contexts = [
        {
            "tokens": length,
            "decode_tok_s": decode_rate(peer.run([prompts.take(length)], task.gen_tokens)),
        }
        for length in task.contexts
    ]
    return {
        "ttft_s": ttft,
        "prefill_tok_s": task.prompt_tokens / alone,
        "peak_rss_bytes": peak,
        "runs": runs,
        "contexts": contexts,
    }


def peak_rss_bytes() -> int:
    """Most memory that this process had resident."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def read_task(description: str) -> Task:
    """The command line that all workers have."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(",") if part)

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--gen-tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=numbers, default=(1, 4, 16))
    parser.add_argument("--contexts", type=numbers, default=())
    parser.add_argument(
        "--first-token", action="store_true", help="only load, compute one token, and say so"
    )
    return Task(**vars(parser.parse_args()))


def main(engine: str, version: str, task: Task, load: Callable[[Task], Peer]) -> None:
    """Load, measure and print; or, for ``--first-token``, load, compute one token and print a line."""
    started = time.perf_counter()
    peer = load(task)
    load_s = time.perf_counter() - started
    if task.first_token:
        peer.run([Prompts(peer.vocab_size).take(task.prompt_tokens)], 1)
        print("first", flush=True)
        return
    figures = {
        "engine": engine,
        "version": version,
        "threads": task.threads,
        "load_s": load_s,
        **measure(peer, task),
    }
    print(json.dumps(figures), flush=True)
