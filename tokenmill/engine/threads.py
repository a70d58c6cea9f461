"""How many threads compute, and where: the physical cores that affinity and control groups leave."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ThreadPlan:
    """count: compute threads. cpus: one for each thread to be pinned to, or none. why: in words."""

    count: int
    cpus: tuple[int, ...]
    why: str


def plan_threads(
    asked: int | None, sys: Path = Path("/sys"), allowed: frozenset[int] | None = None
) -> ThreadPlan:
    """Threads for this process.

    asked: a number that was given explicitly. allowed: CPUs that affinity leaves; None asks the system.
    Two hardware threads of one core share its arithmetic units, so only one of them is used.
    """
    cpus = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    cores: dict[str, int] = {}
    for cpu in cpus:
        siblings = _read(sys / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings or str(cpu), cpu)
    firsts = tuple(cores.values())
    if asked is not None:
        pinned = firsts if asked == len(firsts) else ()
        return ThreadPlan(asked, pinned, "as asked for")
    quota = _cpu_quota(sys)
    if quota is not None and quota < len(firsts):
        # With a quota below one thread a core, pinning would only stop the system from balancing.
        return ThreadPlan(max(int(quota), 1), (), f"a control group allows {quota:g} CPUs")
    why = f"{len(firsts)} physical core{'s' if len(firsts) > 1 else ''} of {len(cpus)} CPUs allowed"
    return ThreadPlan(len(firsts), firsts, why)


def _cpu_quota(sys: Path) -> float | None:
    """CPUs' worth of time that a control group (v2 or v1) grants; None if it isn't limited."""
    period: str
    quota, _, period = _read(sys / "fs/cgroup/cpu.max").partition(" ")
    if not quota:
        quota = _read(sys / "fs/cgroup/cpu/cpu.cfs_quota_us")
        period = _read(sys / "fs/cgroup/cpu/cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or int(quota) == 0 or int(period) == 0:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
