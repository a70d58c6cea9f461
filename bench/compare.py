"""Measures tokenmill beside other engines, in alternating runs, and records medians and ratios.

    python bench/compare.py demo --peers-python .venv-peers/bin/python

Every round starts each engine in a process of its own, one after another, so that what the machine does
meanwhile (its clock, its neighbours) touches all of them alike. Peers are optional: without them only
tokenmill is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenmill import __version__
from tokenmill.errors import TokenmillError
from tokenmill.hardware import choose_threads, read_cpu
from tokenmill.weights.sources import resolve

HERE = Path(__file__).parent

Result = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """What every engine has to do."""

    model: str
    prompt_tokens: int
    gen_tokens: int
    concurrency: str
    threads: int
    quantization: str | None

    def options(self) -> list[str]:
        """For a worker's command line."""
        return [
            "--prompt-tokens", str(self.prompt_tokens),
            "--gen-tokens", str(self.gen_tokens),
            "--concurrency", self.concurrency,
            "--threads", str(self.threads),
        ]  # fmt: skip


def run_worker(command: Sequence[str], path: str | None = None) -> Result:
    """A worker's JSON. path: PYTHONPATH of its environment. Ends the program if the worker fails."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONPATH", None)
    if path is not None:
        environment["PYTHONPATH"] = path
    done = subprocess.run(
        list(command), capture_output=True, text=True, env=environment, check=False, cwd=HERE
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        raise SystemExit(f"{' '.join(command[:4])} ... failed: {last}")
    result: Result = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def tokenmill_worker(work: Workload, *, ceilings: bool) -> Result:
    """One round of tokenmill."""
    command = [sys.executable, "-m", "tokenmill", "bench", work.model, *work.options(), "--json"]
    if work.quantization:
        command += ["--quantization", work.quantization]
    if not ceilings:
        command.append("--no-ceilings")
    result = run_worker(command, os.environ.get("PYTHONPATH"))
    # A path says where something lay on this machine, which is nobody's business.
    return {**result, "model": Path(work.model).name}


def peer_worker(python: Path, model: Path, work: Workload) -> Result:
    """One round of llama-cpp-python."""
    worker = str(HERE / "peer_llama_cpp.py")
    return run_worker([str(python), worker, str(model), *work.options()])


def why_no_peers(python: Path, model: Path) -> str | None:
    """None if llama-cpp-python can be measured on this model, else why not."""
    if model.suffix != ".gguf":
        return "llama.cpp reads .gguf files only"
    if not python.exists():
        return f"{python} does not exist; 'make bench-peers' installs it"
    done = subprocess.run(
        [str(python), "-c", "import llama_cpp, numpy"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"{python} has no llama-cpp-python; 'make bench-peers' installs it"
    return None


def flat(result: Result) -> dict[str, float]:
    """A result's figures by name."""
    values = {
        key: float(result[key]) for key in ("load_s", "ttft_s", "prefill_tok_s", "peak_rss_bytes")
    }
    for run in result["runs"]:
        for key, value in run.items():
            if key != "concurrency":
                values[f"{key} at {run['concurrency']}"] = float(value)
    return values


def summarise(rounds: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Median, least and most of every figure over the rounds."""
    values = [flat(result) for result in rounds]
    return {
        key: {
            "median": statistics.median(v[key] for v in values),
            "least": min(v[key] for v in values),
            "most": max(v[key] for v in values),
        }
        for key in values[0]
    }


def ratios(
    own: Mapping[str, Mapping[str, float]], other: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """How many times better our medians are: faster, sooner, or smaller."""
    found = {}
    for key, value in own.items():
        a, b = value["median"], other[key]["median"]
        if a and b:
            found[key] = a / b if "tok_s" in key else b / a
    return found


def measure(work: Workload, model: Path, peers: Path | None, rounds: int) -> dict[str, list[Result]]:
    """The rounds of every engine, alternating."""
    results: dict[str, list[Result]] = {"tokenmill": []}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}: tokenmill", file=sys.stderr, flush=True)
        results["tokenmill"].append(tokenmill_worker(work, ceilings=number == 0))
        if peers is not None:
            print(f"round {number + 1} of {rounds}: llama-cpp-python", file=sys.stderr, flush=True)
            results.setdefault("llama-cpp-python", []).append(peer_worker(peers, model, work))
    return results


def report(work: Workload, results: dict[str, list[Result]]) -> dict[str, Any]:
    """What is recorded."""
    cpu = read_cpu()
    first = results["tokenmill"][0]
    summary = {engine: summarise(rounds) for engine, rounds in results.items()}
    versions = {"tokenmill": __version__}
    for engine, rounds in results.items():
        versions.setdefault(engine, str(rounds[0].get("version", "")))
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu.model,
        "generation": cpu.generation,
        "instruction_sets": list(cpu.instruction_sets),
        "workload": asdict(work),
        "versions": versions,
        "ceilings": first["ceilings"],
        "share": first["share"],
        "summary": summary,
        "ratios": {
            engine: ratios(summary["tokenmill"], figures)
            for engine, figures in summary.items()
            if engine != "tokenmill"
        },
        "rounds": results,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """A table for people: medians, their spread, and ratios."""
    engines = list(found["summary"])
    others = list(found["ratios"])
    header = f"{'':<22}" + "".join(f"{engine:>28}" for engine in engines)
    text = [header + "".join(f"{'ratio':>8}" for _ in others)]
    for key in found["summary"]["tokenmill"]:
        row = f"{key:<22}"
        for engine in engines:
            value = found["summary"][engine][key]
            scale = 2**20 if key == "peak_rss_bytes" else 1
            figures = (value[name] / scale for name in ("median", "least", "most"))
            row += "{:>12.4g} ({:.4g}-{:.4g})".format(*figures).rjust(28)
        text.append(row + "".join(f"{found['ratios'][o].get(key, float('nan')):>8.2f}" for o in others))
    return [line.replace("peak_rss_bytes", "peak memory MiB") for line in text]


def plot(found: dict[str, Any], path: Path) -> bool:
    """Bars of the speeds. False if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    keys = [key for key in found["summary"]["tokenmill"] if key.startswith(("prefill", "decode"))]
    figure, axes = pyplot.subplots(1, len(keys), figsize=(2.6 * len(keys), 3.2))
    for axis, key in zip([axes] if len(keys) == 1 else axes, keys, strict=True):
        for position, (engine, values) in enumerate(found["summary"].items()):
            value = values[key]
            spread = [[value["median"] - value["least"]], [value["most"] - value["median"]]]
            axis.bar(position, value["median"], yerr=spread, label=engine)
        axis.set_title(key.replace("_tok_s", ""), fontsize=9)
        axis.set_xticks(range(len(found["summary"])), list(found["summary"]), rotation=20, fontsize=7)
    figure.supylabel("tokens/s")
    figure.suptitle(f"{found['workload']['model']}, {found['cpu']}, {found['date'][:10]}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return True


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure tokenmill beside other engines.")
    parser.add_argument("model", help="what tokenmill calls a model; peers need a .gguf file")
    parser.add_argument(
        "--peers-python", type=Path, help="python of the environment with llama-cpp-python"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--gen-tokens", type=int, default=64)
    parser.add_argument("--concurrency", default="1,4,16")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quantization", choices=("int8", "int4"))
    parser.add_argument("--output", type=Path, default=HERE / "results", help="directory of results")
    return parser.parse_args()


def main() -> int:
    """Measure, print, and record."""
    args = parse()
    try:
        model = resolve(args.model)
        threads = choose_threads(args.threads).count
    except TokenmillError as error:
        print(f"compare.py: error: {error}", file=sys.stderr)
        return 1
    work = Workload(
        # The workers run elsewhere, so a path must not be relative.
        model=str(model.resolve()) if Path(args.model).exists() else args.model,
        prompt_tokens=args.prompt_tokens,
        gen_tokens=args.gen_tokens,
        concurrency=args.concurrency,
        threads=threads,
        quantization=args.quantization,
    )
    peers = None
    if args.peers_python is not None:
        reason = why_no_peers(args.peers_python.absolute(), model)
        if reason is None:
            peers = args.peers_python.absolute()
        else:
            print(f"llama-cpp-python is left out: {reason}", file=sys.stderr)
    found = report(work, measure(work, model, peers, args.rounds))
    found["workload"]["model"] = Path(work.model).name
    print("\n".join(lines(found)))
    args.output.mkdir(parents=True, exist_ok=True)
    cpu = "-".join("".join(c if c.isalnum() else " " for c in found["cpu"]).lower().split())
    stem = f"{found['date'][:10]}-{Path(args.model).stem}-{cpu}"
    target = args.output / f"{stem}.json"
    target.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(f"recorded in {target}")
    if plot(found, args.output / f"{stem}.png"):
        print(f"drawn in {args.output / f'{stem}.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
