"""How much of the machine's time a container leaves us."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def cpu_quota(cgroup: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> float | None:
    """CPUs' worth of time that control groups (version 1 or 2) grant this process: the smallest that
    its group or one above it sets; None if none does."""
    quotas: list[float] = []
    for group in _groups(cgroup, proc):
        quota, _, period = _read(group / "cpu.max").strip().partition(" ")
        if not quota:
            quota = _read(group / "cpu.cfs_quota_us").strip()
            period = _read(group / "cpu.cfs_period_us").strip()
        # "max" (version 2) and -1 (version 1) are no limit.
        if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _groups(cgroup: Path, proc: Path) -> Iterator[Path]:
    """This process's groups that may hold a CPU limit, from the innermost to the root.

    Inside a container the path in /proc is often the host's, which is not visible there: what does not
    exist is read as no limit, and the root, which is the container's own group, counts.
    """
    roots = {cgroup: "", cgroup / "cpu": "", cgroup / "cpu,cpuacct": ""}
    for line in _read(proc / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            roots[cgroup] = path
        elif "cpu" in controllers.split(","):
            roots[cgroup / "cpu"] = roots[cgroup / "cpu,cpuacct"] = path
    for root, path in roots.items():
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield root.joinpath(*parts[:depth])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
