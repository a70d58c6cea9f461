"""Options that several commands have, and the settings made from them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.cli.usage import as_usage_errors, positive, size

if TYPE_CHECKING:
    from tokenmill.config import EngineConfig
    from tokenmill.engine.sampling_params import SamplingParams

MODEL_HELP = "alias (demo), pypi:PACKAGE, hf:ORG/NAME[:FILE], ORG/NAME, directory or .gguf file"

PACKED_SIZE_VARIABLE = "TOKENMILL_PACKED_CACHE_SIZE"


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)


def add_engine_options(parser: argparse.ArgumentParser, *, max_num_seqs: int = 64) -> None:
    """How the model is loaded and served."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="compute threads (default: physical cores allowed)",
    )
    group.add_argument(
        "--max-model-len",
        type=positive,
        metavar="N",
        help="longest prompt plus answer, in tokens (default: what the model reads and memory holds)",
    )
    group.add_argument(
        "--cache-memory",
        type=size,
        metavar="SIZE",
        help="memory for keys and values, such as 2G (default: from what the machine has free)",
    )
    group.add_argument(
        "--cache-dtype",
        choices=("auto", "float32", "float16", "bfloat16", "int8"),
        default="auto",
        help="type of keys and values (default: from the checkpoint)",
    )
    group.add_argument(
        "--quantization", choices=("int8", "int4"), help="quantise unquantised matrices while loading"
    )
    group.add_argument(
        "--dtype",
        choices=("auto", "float32", "float16", "bfloat16"),
        default="auto",
        help="type of unquantised matrices (default: the checkpoint's)",
    )
    group.add_argument(
        "--no-packed-cache",
        action="store_true",
        help="pack the weights anew instead of keeping them on disk for the next start",
    )
    group.add_argument(
        "--packed-cache-size",
        type=size,
        default=os.environ.get(PACKED_SIZE_VARIABLE, "32G"),
        metavar="SIZE",
        help="how much of the disk packed weights may take; what was not used for longest goes first "
        f"(default: ${PACKED_SIZE_VARIABLE}, else 32G)",
    )
    group.add_argument(
        "--no-prefix-caching",
        action="store_true",
        help="do not reuse what was computed for equal beginnings",
    )
    group.add_argument(
        "--max-num-seqs",
        type=positive,
        default=max_num_seqs,
        metavar="N",
        help="requests that run at once (default: %(default)s)",
    )
    group.add_argument(
        "--max-batched-tokens",
        type=positive,
        default=512,
        metavar="N",
        help="tokens of one step (default: %(default)s)",
    )
    group.add_argument(
        "--scheduling",
        choices=("fcfs", "priority"),
        default="fcfs",
        help="who goes first (default: first come, first served)",
    )
    group.add_argument(
        "--providers",
        default="native,zentorch",
        metavar="NAMES",
        help="operator providers in order of preference, separated by commas: native, reference, "
        "zentorch (default: %(default)s; the reference is always the last resort; zentorch, where "
        "installed, gets the matrices for which it measures faster)",
    )
    group.add_argument(
        "--no-measure",
        action="store_true",
        help="take the preferred kernels instead of measuring which are fastest here",
    )
    group.add_argument(
        "--operator-choices",
        type=Path,
        metavar="FILE",
        help="take kernels from a file that 'tokenmill info --export-choices' wrote",
    )


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The settings that the engine options say. Raises UsageError if they contradict each other."""
    from tokenmill.config import (
        CacheConfig,
        ComputeConfig,
        EngineConfig,
        LoadConfig,
        SchedulerConfig,
    )

    with as_usage_errors():
        return EngineConfig(
            load=LoadConfig(
                args.model,
                args.dtype,
                args.quantization,
                not args.no_packed_cache,
                args.packed_cache_size,
            ),
            cache=CacheConfig(args.cache_memory, not args.no_prefix_caching, args.cache_dtype),
            scheduler=SchedulerConfig(
                args.max_batched_tokens, args.max_num_seqs, args.max_model_len, args.scheduling
            ),
            compute=ComputeConfig(
                args.threads,
                tuple(name.strip() for name in args.providers.split(",") if name.strip()),
                measure=not args.no_measure,
                operator_choices=args.operator_choices,
            ),
        )


def add_sampling_options(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    """How answers are chosen."""
    group = parser.add_argument_group("sampling (default: what the model's authors recommend)")
    group.add_argument(
        "--max-tokens",
        type=positive,
        default=max_tokens,
        metavar="N",
        help="longest answer, in tokens (default: %(default)s)",
    )
    group.add_argument(
        "--temperature", type=float, metavar="T", help="0 always takes the likeliest token"
    )
    group.add_argument(
        "--top-p", type=float, metavar="P", help="from the likeliest tokens that make up P"
    )
    group.add_argument("--top-k", type=int, metavar="K", help="from the K likeliest tokens; 0 is off")
    group.add_argument(
        "--min-p", type=float, metavar="P", help="from tokens P times as likely as the best"
    )
    group.add_argument(
        "--repetition-penalty", type=float, metavar="R", help="above 1 discourages repeating"
    )
    group.add_argument("--seed", type=int, metavar="S", help="the same seed gives the same answer")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on after the end of the answer")


UNTUNED: dict[str, Any] = {"temperature": 0.7, "top_p": 0.95}
"""Used where the model's authors recommend nothing: small models ramble at temperature 1."""


def sampling_params(args: argparse.Namespace, recommended: SamplingParams) -> SamplingParams:
    """What the sampling options say, on top of what the model's authors recommend.

    Raises UsageError for an invalid value.
    """
    from dataclasses import replace

    from tokenmill.engine.sampling_params import RequestOutputKind, SamplingParams

    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop")
    asked = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    base = UNTUNED if recommended == SamplingParams() else {}
    with as_usage_errors():
        return replace(
            recommended,
            **{
                **base,
                **asked,
                "max_tokens": args.max_tokens,
                "ignore_eos": args.ignore_eos,
                "output_kind": RequestOutputKind.DELTA,
            },
        )
