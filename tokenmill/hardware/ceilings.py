"""What this machine can do at most, measured: the roofline that speeds are held against."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

BUFFER_BYTES = 512 << 20
"""Read by the bandwidth measurement: larger than most caches, small enough for a small machine."""

SECONDS = 0.4
"""How long each of the plain measurements takes, at least."""


@dataclass(frozen=True)
class Ceilings:
    """Per second: bytes read from memory, fp32 and int8 operations (a multiply-add counts as two).

    None: not measured. measured_by: "native" (our kernels) or "torch".
    """

    read_bytes_s: float
    fp32_ops_s: float
    int8_ops_s: float | None
    measured_by: str
    buffer_bytes: int


def measure_ceilings(
    num_threads: int, cpus: Sequence[int] = (), *, native: bool = True, buffer_bytes: int = BUFFER_BYTES
) -> Ceilings:
    """Measure with the native module's loops or, where it is missing, with torch's operators."""
    if native:
        from tokenmill.ops.native import measure_ceilings as measure

        try:
            found = measure(num_threads, cpus, buffer_bytes)
        except RuntimeError:
            pass  # no native module, or none whose kernels work here
        else:
            return Ceilings(
                read_bytes_s=found["read_bytes_s"],
                fp32_ops_s=found["fp32_ops_s"],
                int8_ops_s=found["int8_ops_s"],
                measured_by="native",
                buffer_bytes=buffer_bytes,
            )
    return _with_torch(num_threads, buffer_bytes)


def _with_torch(num_threads: int, buffer_bytes: int) -> Ceilings:
    """Sums a large tensor and multiplies two matrices. torch has no public int8 product for CPUs."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        data = torch.zeros(buffer_bytes // 4)
        size = 1024
        a, b = torch.randn(size, size), torch.randn(size, size)
        out = torch.empty(size, size)
        return Ceilings(
            read_bytes_s=_fastest(data.sum, buffer_bytes),
            fp32_ops_s=_fastest(lambda: torch.mm(a, b, out=out), 2.0 * size**3),
            int8_ops_s=None,
            measured_by="torch",
            buffer_bytes=buffer_bytes,
        )
    finally:
        torch.set_num_threads(before)


def _fastest(work: Callable[[], object], amount: float) -> float:
    """``amount`` per second in the fastest of several runs, after one that warms up."""
    work()
    best = float("inf")
    begun = ended = time.perf_counter()
    while best == float("inf") or ended - begun < SECONDS:
        started = time.perf_counter()
        work()
        ended = time.perf_counter()
        best = min(best, ended - started)
    return amount / max(best, 1e-9)
