"""Many streaming clients for minutes, some of them rude; checks the server, and records figures.

    python bench/serve_load.py demo --minutes 5 --llama-cpp .venv-peers/bin/python

Clients stream chats, read slowly, leave in the middle, and send malformed bodies and oversized prompts.
tokenmill must give every request the answer that it asked for, have all of its cache back afterwards,
and not grow. llama-cpp-python's server gets the same load; its figures are recorded, and nothing is
demanded of it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from http_client import Address, get
from load_behaviour import Asker, Outcome
from recorded import HOME, circumstances, record
from servers import (
    free_address,
    llama_cpp_command,
    resident_bytes,
    running,
    tokenmill_command,
)

from tokenmill.errors import TokenmillError
from tokenmill.hardware import choose_threads
from tokenmill.weights.sources import resolve

GRACE_S = 60
"""How long requests may go on after the last one began."""

IDLE = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
"""Endings of names in /metrics that must be zero once nobody asks for anything."""

FLAT_SHARE, FLAT_BYTES = 0.02, 16 << 20
"""Growth of memory over the second half of a run that still counts as none."""

FLAT_AFTER_S = 60
"""Runs that are shorter say nothing about growth."""


@dataclass(frozen=True)
class Load:
    """What every server has to bear."""

    clients: int
    seconds: float
    seed: int


@dataclass(frozen=True)
class Sample:
    """Memory at a moment."""

    second: float
    resident: int
    anonymous: int


@dataclass(frozen=True)
class Run:
    """What one server did. cut: requests that had not ended when the grace was over."""

    outcomes: list[Outcome]
    cut: int
    samples: list[Sample]
    seconds: float


async def bear(address: Address, pid: int, model: str, load: Load) -> Run:
    """The load, from start to end."""
    outcomes: list[Outcome] = []
    samples: list[Sample] = []
    started = time.monotonic()

    async def client(number: int) -> None:
        asker = Asker(address, model, random.Random(f"{load.seed} {number}"))
        while time.monotonic() - started < load.seconds:
            outcomes.append(await asker.once())

    async def watch() -> None:
        while True:
            samples.append(Sample(time.monotonic() - started, *resident_bytes(pid)))
            await asyncio.sleep(min(1.0, load.seconds / 20))

    watcher = asyncio.create_task(watch())
    clients = [asyncio.create_task(client(number)) for number in range(load.clients)]
    done, late = await asyncio.wait(clients, timeout=load.seconds + GRACE_S)
    seconds = time.monotonic() - started
    for task in (watcher, *late):
        task.cancel()
    await asyncio.gather(watcher, *late, return_exceptions=True)
    for task in done:
        task.result()
    return Run(outcomes, len(late), samples, seconds)


async def at_rest(address: Address) -> dict[str, float]:
    """The gauges of ``IDLE``, once they are zero or five seconds have passed."""
    gauges: dict[str, float] = {}
    for _ in range(50):
        status, content = await get(address, "/metrics")
        gauges = read_gauges(content.decode()) if status == 200 else {}
        if set(gauges) == set(IDLE) and not any(gauges.values()):
            break
        await asyncio.sleep(0.1)
    return gauges


def read_gauges(text: str) -> dict[str, float]:
    """``IDLE`` of the Prometheus text format."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition(" ")[0].partition("{")[0]
        for ending in IDLE:
            if not line.startswith("#") and name.endswith(ending):
                found[ending] = found.get(ending, 0.0) + float(line.split()[-1])
    return found


def growth(samples: Sequence[Sample]) -> int:
    """Bytes by which memory grew from the third to the last quarter of a run."""
    values = [sample.anonymous for sample in samples]
    quarter = len(values) // 4
    if not quarter:
        return 0
    return int(
        statistics.median(values[-quarter:]) - statistics.median(values[-2 * quarter : -quarter])
    )


def is_flat(samples: Sequence[Sample]) -> bool:
    """Whether memory stayed as it was."""
    most = max(sample.anonymous for sample in samples)
    return growth(samples) <= max(FLAT_BYTES, FLAT_SHARE * most)


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median, and what one in ten and one in a hundred exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return {
        name: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }


def summarise(run: Run) -> dict[str, Any]:
    """Figures of one server."""
    streams = [o for o in run.outcomes if o.kind == "stream" and o.asked_for]
    by_kind: dict[str, Counter[str]] = {}
    for outcome in run.outcomes:
        if outcome.asked_for:
            by_kind.setdefault(outcome.kind, Counter())[outcome.what] += 1
    unasked = Counter(f"{o.kind}: {o.what}" for o in run.outcomes if not o.asked_for)
    step = max(1, len(run.samples) // 60)
    return {
        "seconds": run.seconds,
        "requests": len(run.outcomes),
        "requests_s": len(run.outcomes) / run.seconds,
        "pieces_s": sum(outcome.pieces for outcome in run.outcomes) / run.seconds,
        "whole_streams": len(streams),
        "ttft_s": spread([o.ttft_s for o in streams if o.ttft_s is not None]),
        "gap_s": spread([gap for o in streams for gap in o.gaps_s]),
        "answers": {kind: dict(counts) for kind, counts in sorted(by_kind.items())},
        "unasked": dict(unasked.most_common(40)),
        "unasked_count": sum(unasked.values()),
        "cut": run.cut,
        "memory_growth_bytes": growth(run.samples),
        "memory_flat": is_flat(run.samples),
        "memory": [asdict(sample) for sample in run.samples[::step]],
    }


def complaints(summary: Mapping[str, Any], load: Load) -> list[str]:
    """What tokenmill's server must not show."""
    found = []
    if summary["unasked_count"]:
        found.append(f"{summary['unasked_count']} answers that nobody asked for: {summary['unasked']}")
    if summary["cut"]:
        found.append(f"{summary['cut']} requests had not ended {GRACE_S} s after the last one began")
    if not summary["whole_streams"]:
        found.append("not one stream was read to its end")
    left = {name: value for name, value in summary["at_rest"].items() if value}
    if left or set(summary["at_rest"]) != set(IDLE):
        found.append(f"the engine was not at rest afterwards: {summary['at_rest']}")
    if load.seconds >= FLAT_AFTER_S and not summary["memory_flat"]:
        found.append(f"memory grew by {summary['memory_growth_bytes'] >> 20} MiB")
    return found


def lines(servers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A table for people."""

    def quantiles(values: Mapping[str, float] | None) -> str:
        return "-" if values is None else " / ".join(f"{value:.3g}" for value in values.values())

    rows: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("requests", lambda s: str(s["requests"])),
        ("requests/s", lambda s: f"{s['requests_s']:.2f}"),
        ("pieces of text/s", lambda s: f"{s['pieces_s']:.1f}"),
        ("whole streams", lambda s: str(s["whole_streams"])),
        ("ttft p50/p90/p99, s", lambda s: quantiles(s["ttft_s"])),
        ("gap p50/p90/p99, s", lambda s: quantiles(s["gap_s"])),
        ("not asked for", lambda s: str(s["unasked_count"])),
        ("cut off at the end", lambda s: str(s["cut"])),
        ("memory growth, MiB", lambda s: str(s["memory_growth_bytes"] >> 20)),
        ("most memory, MiB", lambda s: str(max(m["resident"] for m in s["memory"]) >> 20)),
    ]
    text = [f"{'':<22}" + "".join(f"{name:>28}" for name in servers)]
    for title, show in rows:
        text.append(f"{title:<22}" + "".join(f"{show(summary):>28}" for summary in servers.values()))
    return text


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Load a server with many clients, some of them rude.")
    parser.add_argument("model", help="what tokenmill calls a model; llama.cpp needs a .gguf file")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache-memory", default="512M", help="of tokenmill's cache")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--llama-cpp", type=Path, help="python with llama-cpp-python[server]")
    parser.add_argument("--output", type=Path, default=HOME, help="directory of results")
    return parser.parse_args()


def main() -> int:
    """Load, check, print, record. 1 if tokenmill's server did what it must not."""
    args = parse()
    try:
        model = resolve(args.model)
        threads = choose_threads(args.threads).count
    except TokenmillError as error:
        print(f"serve_load.py: error: {error}", file=sys.stderr)
        return 1
    facts = circumstances(args.model, threads)
    load = Load(args.clients, args.minutes * 60, args.seed)
    summaries: dict[str, dict[str, Any]] = {}
    address = free_address()
    options = ["--threads", str(threads), "--cache-memory", args.cache_memory]
    options += ["--served-model-name", "model"]
    with running(tokenmill_command(args.model, address, options), address, "/health") as server:
        run = asyncio.run(bear(address, server.pid, "model", load))
        summaries["tokenmill"] = {**summarise(run), "at_rest": asyncio.run(at_rest(address))}
    if args.llama_cpp is not None:
        address = free_address()
        command = llama_cpp_command(args.llama_cpp.absolute(), model, address, threads)
        with running(command, address, "/v1/models") as server:
            run = asyncio.run(bear(address, server.pid, str(model), load))
            summaries["llama-cpp-python"] = summarise(run)
    found = {
        **facts,
        "cache_memory": args.cache_memory,
        "load": asdict(load),
        "servers": summaries,
        "complaints": complaints(summaries["tokenmill"], load),
    }
    print("\n".join(lines(summaries)))
    print(f"recorded in {record('load', found, args.output)}")
    for complaint in found["complaints"]:
        print(f"serve_load.py: {complaint}", file=sys.stderr)
    return 1 if found["complaints"] else 0


if __name__ == "__main__":
    sys.exit(main())
