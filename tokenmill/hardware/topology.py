"""How the machine is laid out: cores and their hardware threads, caches, memory nodes."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

CPUS = "devices/system/cpu"
NODES = "devices/system/node"


@dataclass(frozen=True)
class CacheLevel:
    """One kind of cache. size_bytes: of one instance. instances: how many there are."""

    level: int
    kind: str
    size_bytes: int
    instances: int


@dataclass(frozen=True)
class Topology:
    """num_cpus: hardware threads of the machine. allowed: those that this process may use.

    cores: the allowed ones, those of one physical core together. caches: by level.
    nodes: memory nodes and their CPUs. Parts that the system does not tell are empty.
    """

    num_cpus: int
    allowed: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...]
    caches: tuple[CacheLevel, ...]
    nodes: tuple[tuple[int, ...], ...]

    @property
    def has_smt(self) -> bool:
        """Whether some core runs several hardware threads."""
        return any(len(core) > 1 for core in self.cores)


def read_topology(sys: Path = Path("/sys"), allowed: Collection[int] | None = None) -> Topology:
    """This machine's layout. allowed: CPUs that affinity leaves; None asks the system."""
    usable = tuple(sorted(allowed_cpus() if allowed is None else allowed))
    present = parse_cpu_list(_read(sys / CPUS / "online"))
    return Topology(
        num_cpus=len(present) or os.cpu_count() or len(usable),
        allowed=usable,
        cores=_cores(sys, usable),
        caches=_caches(sys, present or usable),
        nodes=_nodes(sys),
    )


def allowed_cpus() -> frozenset[int]:
    """CPUs that this process may run on; all of them where the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The kernel's way to write a set: "0-3,8" is 0, 1, 2, 3 and 8. Empty for anything else."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return ()
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def _cores(sys: Path, allowed: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    cores: dict[str, list[int]] = {}
    for cpu in allowed:
        siblings = _read(sys / CPUS / f"cpu{cpu}/topology/thread_siblings_list").strip()
        cores.setdefault(siblings or f"cpu {cpu}", []).append(cpu)
    return tuple(tuple(core) for core in cores.values())


def _caches(sys: Path, cpus: tuple[int, ...]) -> tuple[CacheLevel, ...]:
    """Caches of the CPUs, equal ones counted once for each set of CPUs that share them."""
    found: dict[tuple[int, str, int], set[str]] = {}
    for cpu in cpus:
        for index in sorted((sys / CPUS / f"cpu{cpu}/cache").glob("index*")):
            level, size = _read(index / "level").strip(), _parse_size(_read(index / "size"))
            if level.isdigit() and size:
                key = (int(level), _read(index / "type").strip().lower(), size)
                shared = _read(index / "shared_cpu_list").strip() or str(cpu)
                found.setdefault(key, set()).add(shared)
    return tuple(CacheLevel(*key, instances=len(shared)) for key, shared in sorted(found.items()))


def _parse_size(text: str) -> int:
    text = text.strip()
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    digits = text.rstrip("KMG")
    return int(digits) * factors.get(text[-1], 1) if digits.isdigit() else 0


def _nodes(sys: Path) -> tuple[tuple[int, ...], ...]:
    paths = (path for path in (sys / NODES).glob("node*") if path.name[4:].isdigit())
    lists = (
        parse_cpu_list(_read(path / "cpulist")) for path in sorted(paths, key=lambda p: int(p.name[4:]))
    )
    return tuple(cpus for cpus in lists if cpus)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
