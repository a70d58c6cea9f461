"""What workers print, made up."""

from __future__ import annotations

from typing import Any

CEILINGS = {"read_bytes_s": 1e9, "fp32_ops_s": 1e9, "int8_ops_s": 4e9, "measured_by": "native"}
WORK = {"weight_bytes": 2e7, "prefill_ops": 1e7, "quantised": True}


def result(speed: float, load_s: float = 1.0, concurrency: int = 1) -> dict[str, Any]:
    run = {
        "concurrency": concurrency,
        "decode_tok_s": speed,
        "total_tok_s": 9.0,
        "ttft_p50_s": 0.5,
        "itl_p50_s": 0.1,
    }
    return {
        "load_s": load_s,
        "ttft_s": 0.2,
        "prefill_tok_s": 100.0,
        "peak_rss_bytes": 3 << 20,
        "runs": [run],
        "contexts": [],
        "ceilings": CEILINGS,
        "work": WORK,
        "cache_bytes": 1 << 20,
        "libraries_rss_bytes": 1 << 20,
    }
