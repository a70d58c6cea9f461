"""What is made of the workers' figures: medians, spreads, ratios, shares of the machine's ceilings."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Result = dict[str, Any]
Summary = Mapping[str, Mapping[str, float]]

SMALLER_IS_BETTER = (
    "load_s",
    "ttft_s",
    "peak_rss_bytes",
    "ttft_p50_s",
    "itl_p50_s",
    "first start",
    "later",
)


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


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def summarise(rounds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The spread of every figure over the rounds."""
    return {key: spread([values[key] for values in rounds]) for key in rounds[0]}


def ratios(own: Summary, other: Summary) -> dict[str, float]:
    """How many times better our medians are: faster, sooner, or smaller."""
    found = {}
    for key, value in own.items():
        if key not in other:
            continue
        a, b = value["median"], other[key]["median"]
        if a and b:
            found[key] = b / a if key.startswith(SMALLER_IS_BETTER) else a / b
    return found


def roofline(summary: Summary, work: Mapping[str, Any], ceilings: Mapping[str, Any]) -> dict[str, Any]:
    """What share of the machine's ceilings an engine's medians reach.

    decode_read: the file's weights, read once for each token of one sequence, of the read bandwidth.
    prefill: the prompt's matrix products, of the arithmetic ceiling, int8 where the file is quantised
    (None if that is not known).
    """
    decode = summary.get("decode_tok_s at 1")
    limit = ceilings["int8_ops_s"] if work["quantised"] else ceilings["fp32_ops_s"]
    ops_s = summary["prefill_tok_s"]["median"] * work["prefill_ops"]
    return {
        "decode_read": decode["median"] * work["weight_bytes"] / ceilings["read_bytes_s"]
        if decode
        else None,
        "prefill": ops_s / limit if limit else None,
        "prefill_arithmetic": "int8" if work["quantised"] else "fp32",
    }


def memory_share(peak_bytes: float, file_bytes: int, cache_bytes: int) -> float:
    """Peak memory beyond the cache, as a multiple of the file."""
    return (peak_bytes - cache_bytes) / file_bytes


def lines(found: Mapping[str, Any]) -> list[str]:
    """A table for people: medians, their spread, and ratios."""
    engines, others = list(found["summary"]), list(found["ratios"])
    header = f"{'':<22}" + "".join(f"{engine:>28}" for engine in engines)
    text = [header + "".join(f"{'ratio':>8}" for _ in others)]
    for key in found["summary"]["tokenmill"]:
        row = f"{key:<22}"
        for engine in engines:
            value = found["summary"][engine].get(key)
            if value is None:
                row += f"{'-':>28}"
                continue
            scale = 2**20 if key == "peak_rss_bytes" else 1
            figures = (value[name] / scale for name in ("median", "least", "most"))
            row += "{:.4g} ({:.4g}-{:.4g})".format(*figures).rjust(28)
        text.append(row + "".join(_cell(found["ratios"][other].get(key)) for other in others))
    return [line.replace("peak_rss_bytes", "peak memory MiB") for line in text]


def _cell(value: float | None) -> str:
    return f"{'-':>8}" if value is None else f"{value:>8.2f}"
