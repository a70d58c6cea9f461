"""How much memory this process has taken."""

from __future__ import annotations

import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_rss_bytes(status: Path = STATUS) -> int:
    """Most memory that this process had resident so far.

    ``getrusage`` would count what the parent had when it started us, so Linux's own figure comes first.
    """
    found = _field("VmHWM", status)
    if found is not None:
        return found
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def rss_bytes(status: Path = STATUS) -> int | None:
    """Memory that this process has resident now; None where the system does not tell."""
    return _field("VmRSS", status)


def _field(name: str, status: Path) -> int | None:
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
