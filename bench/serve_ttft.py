"""Time to first token of chats that share a long system prompt, with prefix caching on and off.

    python bench/serve_ttft.py demo

Every round starts a server with prefix caching and one without, one after the other, so that what the
machine does meanwhile touches both. A first request, which is not counted, brings the system prompt
into the cache; then 1, 8 and 32 clients ask at once, each its own question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from http_client import Address, encode, send
from load_behaviour import CHAT, WORDS
from recorded import HOME, circumstances, record
from servers import free_address, running, tokenmill_command

from tokenmill.errors import TokenmillError
from tokenmill.hardware import choose_threads
from tokenmill.weights.sources import resolve

CACHING: Mapping[str, Sequence[str]] = {"on": (), "off": ("--no-prefix-caching",)}


@dataclass(frozen=True)
class Workload:
    """What is asked. prompt_tokens: of the system prompt, about; the usage tells how many they are."""

    prompt_tokens: int
    gen_tokens: int
    concurrency: tuple[int, ...]
    rounds: int


@dataclass(frozen=True)
class Measured:
    """One round at one concurrency. ttft_s: of each client. prompt, cached: tokens of all clients."""

    concurrency: int
    ttft_s: list[float]
    prompt: int
    cached: int


async def system_prompt(address: Address, tokens: int) -> str:
    """A text of that many tokens, by the server's own count, give or take one word."""
    words = WORDS * (tokens // len(WORDS) + 1)
    least, most = 1, len(words)
    while least < most:
        middle = (least + most + 1) // 2
        if await count(address, " ".join(words[:middle])) <= tokens:
            least = middle
        else:
            most = middle - 1
    return " ".join(words[:least])


async def count(address: Address, text: str) -> int:
    """Tokens of a text, without what a template adds."""
    body = {"prompt": text, "max_tokens": 1, "temperature": 0}
    async with send(address, "POST", "/v1/completions", encode(body)) as reply:
        content = json.loads(await reply.body())
    if reply.status != 200:
        raise SystemExit(f"the server refused a prompt: {content['error']['message']}")
    return int(content["usage"]["prompt_tokens"])


async def ask(address: Address, system: str, question: str, gen_tokens: int) -> tuple[float, int, int]:
    """Seconds to the first piece of text; tokens of the prompt, and how many of them were cached."""
    body = {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
        "max_tokens": gen_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    started = time.perf_counter()
    first = None
    usage: dict[str, Any] = {}
    async with send(address, "POST", CHAT, encode(body)) as reply:
        if reply.status != 200:
            raise SystemExit(f"the server answered {reply.status}: {(await reply.body())[:300]!r}")
        async for data in reply.events():
            event = json.loads(data) if data != "[DONE]" else {}
            usage = event.get("usage") or usage
            if "error" in event:
                raise SystemExit(f"an error in a stream: {event['error']['message']}")
            if first is None and any(c["delta"].get("content") for c in event.get("choices", ())):
                first = time.perf_counter() - started
    if first is None or not usage:
        raise SystemExit("a stream ended without text or usage")
    return first, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


async def one_round(address: Address, work: Workload) -> list[Measured]:
    """All concurrencies, one after another, on a server that has just started."""
    system = await system_prompt(address, work.prompt_tokens)
    await ask(address, system, "What is first?", work.gen_tokens)
    found = []
    for concurrency in work.concurrency:
        questions = [
            f"Question {concurrency}-{n}: what is a {WORDS[n % len(WORDS)]}?"
            for n in range(concurrency)
        ]
        answers = await asyncio.gather(*(ask(address, system, q, work.gen_tokens) for q in questions))
        found.append(
            Measured(
                concurrency,
                [ttft for ttft, _, _ in answers],
                sum(prompt for _, prompt, _ in answers),
                sum(cached for _, _, cached in answers),
            )
        )
    return found


def measure(model: str, options: Sequence[str], work: Workload) -> dict[str, list[list[Measured]]]:
    """Rounds by whether caching is on."""
    results: dict[str, list[list[Measured]]] = {name: [] for name in CACHING}
    for number in range(work.rounds):
        for name, more in CACHING.items():
            print(f"round {number + 1} of {work.rounds}: caching {name}", file=sys.stderr, flush=True)
            address = free_address()
            command = tokenmill_command(model, address, [*options, *more])
            with running(command, address, "/health"):
                results[name].append(asyncio.run(one_round(address, work)))
    return results


def summarise(rounds: Sequence[Sequence[Measured]]) -> list[dict[str, float]]:
    """By concurrency: the median of all clients of all rounds, and the least and most round's median.

    last_s: when the last client had its first token, as the median of the rounds.
    """
    found = []
    for same in zip(*rounds, strict=True):
        medians = [statistics.median(measured.ttft_s) for measured in same]
        found.append(
            {
                "concurrency": same[0].concurrency,
                "median_s": statistics.median(t for measured in same for t in measured.ttft_s),
                "least_s": min(medians),
                "most_s": max(medians),
                "last_s": statistics.median(max(measured.ttft_s) for measured in same),
                "cached_share": sum(m.cached for m in same) / sum(m.prompt for m in same),
            }
        )
    return found


def lines(summary: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    """A table in Markdown."""
    text = [
        "| clients | caching on, ms | caching off, ms | ratio | tokens cached |",
        "|---|---|---|---|---|",
    ]
    for on, off in zip(summary["on"], summary["off"], strict=True):
        cells = [
            f"{1000 * row['median_s']:.0f} ({1000 * row['least_s']:.0f}-{1000 * row['most_s']:.0f})"
            for row in (on, off)
        ]
        cells += [f"{off['median_s'] / on['median_s']:.1f}", f"{on['cached_share']:.0%}"]
        text.append(f"| {on['concurrency']} | {' | '.join(cells)} |")
    return text


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure time to first token with a shared prompt.")
    parser.add_argument("model", help="what tokenmill calls a model")
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--gen-tokens", type=int, default=16)
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path, default=HOME, help="directory of results")
    return parser.parse_args()


def main() -> int:
    """Measure, print, record."""
    args = parse()
    try:
        resolve(args.model)
        threads = choose_threads(args.threads).count
    except TokenmillError as error:
        print(f"serve_ttft.py: error: {error}", file=sys.stderr)
        return 1
    work = Workload(
        args.prompt_tokens,
        args.gen_tokens,
        tuple(int(part) for part in args.concurrency.split(",")),
        args.rounds,
    )
    facts = circumstances(args.model, threads)
    results = measure(args.model, ["--threads", str(threads)], work)
    summary = {name: summarise(rounds) for name, rounds in results.items()}
    found = {
        **facts,
        "workload": asdict(work),
        "summary": summary,
        "rounds": {
            name: [[asdict(measured) for measured in one] for one in rounds]
            for name, rounds in results.items()
        },
    }
    print("\n".join(lines(summary)))
    print(f"recorded in {record('ttft', found, args.output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
