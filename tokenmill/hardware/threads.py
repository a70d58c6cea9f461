"""How many threads compute, and on which CPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokenmill.errors import ConfigError
from tokenmill.hardware.limits import cpu_quota
from tokenmill.hardware.topology import Topology, read_topology


@dataclass(frozen=True)
class ThreadChoice:
    """count: compute threads. cpus: one for each thread to be pinned to, or none. why: in words."""

    count: int
    cpus: tuple[int, ...]
    why: str


def choose_threads(
    requested: int | None = None, topology: Topology | None = None, quota: float | None = None
) -> ThreadChoice:
    """Compute threads for this process: one for each physical core that it may use.

    Two hardware threads of one core share its arithmetic units, so a second one adds little and makes
    every thread wait for the slowest. Affinity and the CPU quota of control groups are respected.

    topology, quota: None reads this machine's (then the quota is read as well).
    Raises ConfigError if ``requested`` is less than 1.
    """
    if requested is not None and requested < 1:
        raise ConfigError(f"threads must be at least 1, not {requested}")
    if topology is None:
        topology, quota = read_topology(), cpu_quota()
    firsts = tuple(core[0] for core in topology.cores)
    if requested is not None:
        pinned = firsts if requested == len(firsts) and not _limits(quota, requested) else ()
        return ThreadChoice(requested, pinned, "as asked for")
    if quota is not None and _limits(quota, len(firsts)):
        # With less time than one thread a core can use, pinning only keeps the system from balancing.
        return ThreadChoice(
            max(math.floor(quota), 1), (), f"a control group allows {quota:g} CPUs' worth of time"
        )
    cores = "1 physical core" if len(firsts) == 1 else f"{len(firsts)} physical cores"
    cpus = f"{len(topology.allowed)} CPU{'s' if len(topology.allowed) > 1 else ''}"
    left = topology.num_cpus - len(topology.allowed)
    away = f", {left} more are not ours to use" if left > 0 else ""
    smt = "; second hardware threads of a core are left idle" if topology.has_smt else ""
    return ThreadChoice(len(firsts), firsts, f"one for each of {cores} ({cpus}{away}){smt}")


def _limits(quota: float | None, threads: int) -> bool:
    return quota is not None and quota < threads
