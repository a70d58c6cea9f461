"""How much memory this process has taken."""

from __future__ import annotations

import sys
from pathlib import Path


def peak_rss_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Most memory that this process had resident so far.

    ``getrusage`` would count what the parent had when it started us, so Linux's own figure comes first.
    """
    try:
        lines = status.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
