"""Draws a comparison's speeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plot(found: Mapping[str, Any], path: Path) -> bool:
    """Bars of every engine, their spread, and the ceilings as lines. False if matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    keys = [key for key in found["summary"]["tokenmill"] if key.startswith(("prefill", "decode"))]
    figure, axes = pyplot.subplots(1, len(keys), figsize=(2.6 * len(keys), 3.4), squeeze=False)
    engines = list(found["summary"])
    for axis, key in zip(axes[0], keys, strict=True):
        for position, engine in enumerate(engines):
            value = found["summary"][engine].get(key)
            if value is None:
                continue
            spread = [[value["median"] - value["least"]], [value["most"] - value["median"]]]
            axis.bar(position, value["median"], yerr=spread)
        limit = ceiling(found, key)
        if limit is not None:
            axis.axhline(limit, color="grey", linestyle="--", linewidth=1)
            axis.text(len(engines) - 0.6, limit, "ceiling", fontsize=7, ha="right", va="bottom")
        axis.set_title(key.replace("_tok_s", ""), fontsize=9)
        axis.set_xticks(range(len(engines)), engines, rotation=20, fontsize=7)
    figure.supylabel("tokens/s")
    figure.suptitle(f"{found['name']}, {found['cpu']}, {found['date'][:10]}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def ceiling(found: Mapping[str, Any], key: str) -> float | None:
    """Tokens a second that the machine's ceilings allow, where one of them is the limit."""
    share = found["roofline"]["tokenmill"]
    reached = {"decode_tok_s at 1": share["decode_read"], "prefill_tok_s": share["prefill"]}.get(key)
    median: float = found["summary"]["tokenmill"][key]["median"]
    return median / reached if reached else None
