"""``tokenmill info``: what this machine is, and how a model would run on it."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.cli import options
from tokenmill.cli.figures import size_text
from tokenmill.cli.libraries import load_libraries
from tokenmill.cli.usage import UsageError

if TYPE_CHECKING:
    from tokenmill.config import EngineConfig
    from tokenmill.engine.build import BuiltEngine

EPILOG = """\
examples:
  tokenmill info
  tokenmill info demo
"""

SHAPE = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "sliding_window",
    "tie_word_embeddings",
)
"""Keys of the configuration that say how large a model is."""


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "info",
        parents=[common],
        help="describe this machine, or how a model runs on it",
        description="Describe this machine and the threads chosen; with MODEL, its shape, its memory "
        "and which provider runs each of its operators.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help=options.MODEL_HELP)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument(
        "--export-choices",
        type=Path,
        metavar="FILE",
        help="write which kernels were chosen for MODEL, for --operator-choices",
    )
    options.add_engine_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    result: dict[str, Any] = {"machine": machine(args.threads)}
    if args.model is not None:
        config = options.engine_config(args)
        load_libraries()
        result["model"] = _load_and_describe(args.model, config)
        result["machine"]["threads"] = result["model"].pop("threads")
    if args.export_choices is not None:
        _export(args.export_choices, result)
    if args.json:
        print(json.dumps(result))
    else:
        print_sections(result)
    return 0


def _export(path: Path, result: dict[str, Any]) -> None:
    from tokenmill.ops.choice import write_choices

    if "model" not in result:
        raise UsageError("--export-choices needs a MODEL whose kernels are chosen")
    try:
        write_choices(path, {name: tuple(k) for name, k in result["model"]["kernel_choices"].items()})
    except OSError as error:
        raise UsageError(f"choices can't be written to {path}: {error.strerror}") from None


def _load_and_describe(name: str, config: EngineConfig) -> dict[str, Any]:
    from tokenmill.engine.build import build_engine

    return describe_model(name, build_engine(config))


def machine(requested_threads: int | None = None) -> dict[str, Any]:
    """The CPU, its layout, and the threads that would compute."""
    from tokenmill.cache.memory import available_memory
    from tokenmill.hardware import choose_threads, read_cpu, read_topology
    from tokenmill.hardware.limits import cpu_quota

    cpu, topology, quota = read_cpu(), read_topology(), cpu_quota()
    threads = choose_threads(requested_threads, topology, quota)
    return {
        "cpu": cpu.model,
        "generation": cpu.generation,
        "instruction_sets": list(cpu.instruction_sets),
        "cpus": topology.num_cpus,
        "cpus_allowed": len(topology.allowed),
        "physical_cores_allowed": len(topology.cores),
        "cpu_quota": quota,
        "caches": [
            {"level": c.level, "kind": c.kind, "size_bytes": c.size_bytes, "instances": c.instances}
            for c in topology.caches
        ],
        "numa_nodes": [list(node) for node in topology.nodes],
        "memory_available_bytes": available_memory(),
        "threads": {"count": threads.count, "why": threads.why},
    }


def describe_model(name: str, built: BuiltEngine) -> dict[str, Any]:
    """Shape, weights, memory plan and operators of a model that was built."""
    config = built.checkpoint.config
    formats: Counter[str] = Counter()
    parameters = num_bytes = 0
    for tensor_name in built.checkpoint.names():
        raw = built.checkpoint.get(tensor_name)
        elements = 1
        for extent in raw.shape:
            elements *= extent
        parameters += elements
        num_bytes += raw.data.numel()
        formats[raw.format] += raw.data.numel()
    operators: Counter[tuple[str, str, str]] = Counter(built.operators.table.chosen)
    tokenizer = built.tokenizer
    return {
        "name": name,
        "threads": {"count": built.threads.count, "why": built.threads.why},
        "path": str(built.checkpoint.path),
        "architecture": (config.get("architectures") or [None])[0],
        "shape": {key: config[key] for key in SHAPE if config.get(key) is not None},
        "parameters": parameters,
        "weight_bytes": num_bytes,
        "weight_formats": dict(formats.most_common()),
        "chat_template": tokenizer is not None and tokenizer.chat_template is not None,
        "max_model_len": built.memory.max_model_len,
        "cache_bytes": built.memory.pool_bytes,
        "memory_plan": built.memory.describe(),
        "providers": list(built.operators.notes),
        "operators": [
            {"operator": operator, "detail": detail, "provider": provider, "count": count}
            for (operator, detail, provider), count in operators.items()
        ],
        "packed_weights": built.packed,
        "kernel_choices": _kernel_choices(built),
        "load_s": built.load_s,
    }


def _kernel_choices(built: BuiltEngine) -> dict[str, list[str]]:
    """Of each matrix product, the kernels for 1, up to 8, up to 64 and more rows; of each matrix that
    several providers wanted, who has it.
    """
    from tokenmill.ops.choice import NUM_CHOICES

    native = built.operators.native
    used = native.choices.used if native is not None and native.choices is not None else {}
    kernels = {operator: list(names) for operator, names in used.items()}
    return kernels | {
        m: [name] * NUM_CHOICES for m, name in built.operators.rivals.choices.used.items()
    }


def print_sections(result: dict[str, Any]) -> None:
    """For people."""
    _print_machine(result["machine"])
    if "model" in result:
        print()
        _print_model(result["model"])


def _print_machine(found: dict[str, Any]) -> None:
    generation = f" ({found['generation']})" if found["generation"] else ""
    unknown = "not told by this system"
    rows = [
        ("CPU", found["cpu"] + generation),
        ("instruction sets", " ".join(found["instruction_sets"]) or unknown),
        ("cores", f"{found['physical_cores_allowed']} physical, {found['cpus_allowed']} of "
         f"{found['cpus']} CPUs allowed"),
        ("caches", ", ".join(map(_cache_text, found["caches"])) or unknown),
        ("NUMA nodes", str(len(found["numa_nodes"]) or unknown)),
        ("memory free", size_text(found["memory_available_bytes"])),
        ("threads", f"{found['threads']['count']}: {found['threads']['why']}"),
    ]  # fmt: skip
    if found["cpu_quota"] is not None:
        rows.insert(3, ("CPU quota", f"{found['cpu_quota']:g} CPUs"))
    _print_rows(rows)


def _cache_text(cache: dict[str, Any]) -> str:
    kind = {"data": "d", "instruction": "i"}.get(cache["kind"], "")
    times = f" x {cache['instances']}" if cache["instances"] > 1 else ""
    return f"L{cache['level']}{kind} {size_text(cache['size_bytes'])}{times}"


def _print_model(found: dict[str, Any]) -> None:
    formats = ", ".join(f"{name} {size_text(size)}" for name, size in found["weight_formats"].items())
    rows = [
        ("model", found["name"]),
        ("file", found["path"]),
        ("architecture", str(found["architecture"])),
        *((key, str(value)) for key, value in found["shape"].items()),
        ("parameters", f"{found['parameters'] / 1e6:.1f} million"),
        ("weights", f"{size_text(found['weight_bytes'])} ({formats})"),
        ("chat template", "yes" if found["chat_template"] else "no"),
        ("longest text", f"{found['max_model_len']} tokens"),
        *(("memory", line) for line in found["memory_plan"]),
        *(("providers", note) for note in found["providers"]),
        ("packed weights", found["packed_weights"]),
        ("loaded in", f"{found['load_s']:.2f} s"),
    ]
    _print_rows(rows)
    if found["kernel_choices"]:
        print("\nkernels for 1, up to 8, up to 64 and more rows")
        for operator, names in found["kernel_choices"].items():
            print(f"  {', '.join(names) if len(set(names)) > 1 else names[0]:<34} {operator}")
    print("\noperators")
    for entry in found["operators"]:
        what = f"{entry['operator']} {entry['detail']}"
        print(f"  {entry['provider']:<10} {entry['count']:>4} x {what}".rstrip())


def _print_rows(rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
