"""``tokenmill bench``: how fast a model runs on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tokenmill.cli import options
from tokenmill.cli.figures import size_text
from tokenmill.cli.libraries import load_libraries
from tokenmill.cli.usage import positive, positive_list

EPILOG = """\
Prompts are random tokens, answers are greedy and have exactly the length asked for. "decode" counts
tokens while all requests are decoding, "total" all tokens of prompts and answers. Shares say how close
to the machine's measured limits that is: decoding one sequence is bound by reading the weights,
computing a prompt by arithmetic.

examples:
  tokenmill bench demo
  tokenmill bench demo --prompt-tokens 128 --gen-tokens 32 --concurrency 1,8 --json
  tokenmill bench demo --profile
"""

CONCURRENCY = (1, 4, 16)
PROFILE_CONCURRENCY = (1,)
"""Requests at once where none are asked for; a table of operators each is much to read."""


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "bench",
        parents=[common],
        help="measure a model's speed on this machine",
        description="Measure loading, time to first token, speed of prompts and answers, and memory.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model(parser)
    parser.add_argument(
        "--prompt-tokens", type=positive, default=512, metavar="N", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--gen-tokens", type=positive, default=64, metavar="N", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--concurrency",
        type=positive_list,
        metavar="N,N,...",
        help="requests at once, one run for each (default: 1,4,16; with --profile: 1)",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="instead show where the time of a prefill step and of a decode step goes, operator by "
        "operator",
    )
    parser.add_argument(
        "--contexts",
        type=positive_list,
        default=(),
        metavar="N,N,...",
        help="also measure how fast one sequence decodes after prompts of these lengths",
    )
    parser.add_argument(
        "--no-ceilings", action="store_true", help="don't measure the machine's own limits"
    )
    parser.add_argument("--json", action="store_true", help="print one object")
    options.add_engine_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.concurrency is None:
        args.concurrency = PROFILE_CONCURRENCY if args.profile else CONCURRENCY
    args.max_num_seqs = max(args.max_num_seqs, *args.concurrency, 1)
    args.max_batched_tokens = max(args.max_batched_tokens, args.max_num_seqs)
    config = options.engine_config(args)
    load_libraries()
    from tokenmill.benchmark.measure import BenchmarkPlan, measure
    from tokenmill.benchmark.profile import ProfilePlan, profile

    def report(text: str) -> None:
        print(f"{text} ...", file=sys.stderr, flush=True)

    if args.profile:
        result = profile(
            config, ProfilePlan(args.prompt_tokens, args.gen_tokens, args.concurrency), report
        )
    else:
        plan = BenchmarkPlan(
            args.prompt_tokens,
            args.gen_tokens,
            args.concurrency,
            args.contexts,
            ceilings=not args.no_ceilings,
        )
        result = measure(config, plan, report)
    if args.json:
        print(json.dumps(result))
    else:
        print("\n".join(profile_lines(result) if args.profile else lines(result)))
    return 0


def lines(result: dict[str, Any]) -> list[str]:
    """For people."""
    text = [
        f"{result['model']}: {result['threads']} threads, prompts of {result['prompt_tokens']} tokens, "
        f"{result['gen_tokens']} generated",
        f"load            {result['load_s']:.2f} s",
        f"first token     {result['ttft_s']:.3f} s",
        f"prompt          {result['prefill_tok_s']:.1f} tokens/s",
        f"peak memory     {size_text(result['peak_rss_bytes'])}",
        "",
        "at once   decode tokens/s   total tokens/s   first token p50   between tokens p50",
    ]
    text += [
        f"{run['concurrency']:>7}   {run['decode_tok_s']:>15.1f}   {run['total_tok_s']:>14.1f}   "
        f"{run['ttft_p50_s']:>13.3f} s   {run['itl_p50_s'] * 1000:>15.1f} ms"
        for run in result["runs"]
    ]
    if result["contexts"]:
        text += ["", "context   decode tokens/s"]
        text += [f"{run['tokens']:>7}   {run['decode_tok_s']:>15.1f}" for run in result["contexts"]]
    ceilings, share = result["ceilings"], result["share"]
    if ceilings is not None:
        text += ["", ceilings_line(ceilings)]
        names = {
            "decode_read": "of the read bandwidth while one sequence decodes",
            "prefill_int8": "of the int8 arithmetic while a prompt is computed",
            "prefill_fp32": "of the fp32 arithmetic while a prompt is computed",
        }
        text += [
            f"share           {share[key]:.0%} {name}"
            for key, name in names.items()
            if share[key] is not None
        ]
    return text


def ceilings_line(ceilings: dict[str, Any]) -> str:
    """The machine's own limits."""
    int8 = ceilings["int8_ops_s"]
    return (
        f"this machine    reads {ceilings['read_bytes_s'] / 1e9:.1f} GB/s, computes "
        f"{ceilings['fp32_ops_s'] / 1e9:.0f} GFLOP/s in fp32 and "
        + (
            "an unknown number of int8 operations"
            if int8 is None
            else f"{int8 / 1e9:.0f} GOP/s in int8"
        )
    )


def profile_lines(result: dict[str, Any]) -> list[str]:
    """A profile, for people: one table a step."""
    text = [
        f"{result['model']}: {result['threads']} threads, kernels {result['kernels']}",
        ceilings_line(result["ceilings"]),
    ]
    for step in result["steps"]:
        text += ["", *step_lines(step)]
    return text


def step_lines(step: dict[str, Any]) -> list[str]:
    """One step's operators, the slowest first, and what Python takes."""
    rows = [*step["operators"], {"name": "all", "calls": "", "share": 1.0, **step}]
    width = max(len(row["name"]) for row in rows)
    text = [
        f"{step['step']}: {_count(step['sequences'], 'sequence')}, {_count(step['tokens'], 'token')}, "
        f"context {step['context']}: {step['seconds'] * 1000:.3f} ms in the native call",
        f"{'operator':<{width}} {'calls':>6} {'ms':>9} {'share':>6} {'MB read':>9} {'GB/s':>7} "
        f"{'GOP/s':>7}  of ceiling",
    ]
    text += [
        f"{row['name']:<{width}} {row['calls']:>6} {row['seconds'] * 1000:>9.3f} {row['share']:>6.1%} "
        f"{row['bytes_read'] / 1e6:>9.2f} {row['read_bytes_s'] / 1e9:>7.2f} "
        f"{row['ops_s'] / 1e9:>7.1f}  "
        + ("-" if row["of_ceiling"] is None else f"{row['of_ceiling']:.0%} {row['bound']}")
        for row in rows
    ]
    python = step["python"]
    if python is not None:
        names = ("schedule", "fill", "sample", "append", "other")
        parts = ", ".join(f"{name} {python[f'{name}_s'] * 1e6:.0f}" for name in names)
        text.append(
            f"Python: {python['share']:.1%} of {python['step_s'] * 1000:.3f} ms from step to step "
            f"(microseconds: {parts})"
        )
    return text


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
