"""How much memory the block pool gets: what the machine has free, within a container's limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenmill.cache.plan import CachePlan
from tokenmill.cache.spec import BLOCK_SIZE
from tokenmill.config import CacheConfig, SchedulerConfig
from tokenmill.errors import ConfigError

GIB = 1 << 30
DEFAULT_CAP = 4 * GIB
"""What we take without being asked, unless one request needs more."""
FREE_SHARE = 0.6
"""Share of the free memory that the pool may take; the rest is for everything else."""
MAX_SNAPSHOTS = 1024
"""Recurrent states kept for later requests; more would be slow to choose among."""


@dataclass(frozen=True)
class MemoryPlan:
    """The block pool, as it is stated at start.

    num_blocks, block_bytes: size of the pool. num_groups: block tables of a request. num_slots,
    slot_bytes: of recurrent states, for at most max_num_seqs requests and for snapshots.
    available_bytes: free memory when this was decided. max_model_len: longest text served.
    model_limit: longest text the model can read. max_chunk: tokens of a request in one step.
    request_bytes: most that one request of max_model_len holds. chosen_by: what set the size.
    """

    num_blocks: int
    block_bytes: int
    num_groups: int
    num_slots: int
    slot_bytes: int
    max_num_seqs: int
    available_bytes: int
    max_model_len: int
    model_limit: int
    max_chunk: int
    request_bytes: int
    chosen_by: str

    @property
    def pool_bytes(self) -> int:
        """Bytes of both pools."""
        return self.num_blocks * self.block_bytes + self.num_slots * self.slot_bytes

    @property
    def full_requests(self) -> float:
        """How many requests of max_model_len fit at once."""
        blocks = self.num_blocks * self.block_bytes
        return blocks / self.request_bytes if self.request_bytes else float(self.max_num_seqs)

    def describe(self) -> list[str]:
        """A few lines for people."""
        free = f"{self.chosen_by}; {_size(self.available_bytes)} were free"
        lines = []
        if self.num_blocks:
            groups = f"{self.num_groups} group{'s' if self.num_groups > 1 else ''}"
            lines.append(
                f"cache: {_size(self.num_blocks * self.block_bytes)} in {self.num_blocks} blocks of "
                f"{BLOCK_SIZE} tokens x {_size(self.block_bytes)}, {groups} ({free})"
            )
        if self.num_slots:
            lines.append(
                f"recurrent state: {_size(self.num_slots * self.slot_bytes)} in {self.num_slots} slots "
                f"x {_size(self.slot_bytes)}, for requests and snapshots of shared beginnings ({free})"
            )
        lines.append(f"holds {self.full_requests:.1f} requests of {self.max_model_len} tokens at once")
        if self.max_model_len < self.model_limit:
            lines.append(
                f"max_model_len is {self.max_model_len}; the model can read {self.model_limit}"
            )
        return lines


def available_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process may still take: MemAvailable, or less if a control group (v1 or v2, or
    one above it) allows less."""
    free = [_mem_available(proc)]
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            roots = [(cgroup, "memory.max", "memory.current", "inactive_file")]
        elif "memory" in controllers.split(","):
            root = cgroup / "memory"
            roots = [(root, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")]
        else:
            continue
        for root, limit, usage, reclaimable in roots:
            # Inside a container the path may be the host's, which is not visible: then the root counts.
            group = root / path.strip("/")
            while True:
                left = _left_in_group(group, limit, usage, reclaimable)
                if left is not None:
                    free.append(left)
                if group == root or root not in group.parents:
                    break
                group = group.parent
    return max(min(free), 0)


def _mem_available(proc: Path) -> int:
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError(
        "this system does not say how much memory is free; set the size of the cache explicitly"
    )


def _left_in_group(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    most, used = _read(group / limit).strip(), _read(group / usage).strip()
    if not most.isdigit() or not used.isdigit():
        return None
    cached = 0
    for line in _read(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == reclaimable:
            cached = int(value)
    return int(most) - max(int(used) - cached, 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def plan_memory(
    plan: CachePlan,
    *,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    model_limit: int,
    available_bytes: int,
) -> MemoryPlan:
    """Size of the pool, and the longest text that it serves.

    Recurrent states come out of the same amount: at most half of it if there is attention as well.
    An explicit ``memory_bytes`` wins. Otherwise the pool is what max_num_seqs requests of
    max_model_len could use, but at most DEFAULT_CAP (or one request, if that is more) and at most
    FREE_SHARE of the free memory. If one request of the model's own limit doesn't fit, the limit is
    lowered, unless max_model_len was asked for.

    Raises ConfigError if more memory was asked for than there is, if max_model_len was asked for and
    doesn't fit, or if not even a short text does.
    """
    max_chunk = scheduler.max_num_batched_tokens
    asked = scheduler.max_model_len
    length = model_limit if asked is None else min(asked, model_limit)
    request = plan.blocks_held(length, max_chunk) * plan.block_bytes
    max_seqs = scheduler.max_num_seqs
    states = 2 * max_seqs * plan.slot_bytes
    if cache.memory_bytes is not None:
        size, chosen_by = cache.memory_bytes, "as asked for"
        if size > available_bytes:
            # The system would promise it and kill the process once requests fill it.
            raise ConfigError(
                f"the cache is to take {_size(size)}, but this machine has only "
                f"{_size(available_bytes)} left; ask for less, or leave the size to the engine"
            )
    else:
        size, chosen_by = min(
            (request * max_seqs + states, f"enough for {max_seqs} requests at once"),
            (max(DEFAULT_CAP, request + states), "the most taken by default"),
            (int(available_bytes * FREE_SHARE), f"{FREE_SHARE:.0%} of the free memory"),
        )
    num_slots = _state_slots(plan, size, max_seqs, cache.enable_prefix_caching)
    size -= num_slots * plan.slot_bytes
    num_blocks = size // plan.block_bytes if plan.block_bytes else 0
    fits = _longest_text(plan, num_blocks, length, max_chunk)
    if fits < length and (asked is not None or fits < 2 * BLOCK_SIZE):
        wanted = length if asked is not None else 2 * BLOCK_SIZE
        needed = plan.blocks_held(wanted, max_chunk) * plan.block_bytes
        raise ConfigError(
            f"a text of {wanted} tokens needs {_size(needed)} of cache, but there are {_size(size)} "
            f"({chosen_by}); give the cache more memory or lower max_model_len"
        )
    return MemoryPlan(
        num_blocks=num_blocks,
        block_bytes=plan.block_bytes,
        num_groups=len(plan.groups),
        num_slots=num_slots,
        slot_bytes=plan.slot_bytes,
        max_num_seqs=max_seqs,
        available_bytes=available_bytes,
        max_model_len=fits,
        model_limit=model_limit,
        max_chunk=max_chunk,
        request_bytes=plan.blocks_held(fits, max_chunk) * plan.block_bytes,
        chosen_by=chosen_by,
    )


def _state_slots(plan: CachePlan, size: int, max_seqs: int, with_snapshots: bool) -> int:
    """Slots for recurrent states, of requests and of snapshots, in up to half of the memory."""
    if not plan.slot_bytes:
        return 0
    room = (size // 2 if plan.groups else size) // plan.slot_bytes
    if room < 2:
        raise ConfigError(
            f"a request needs {_size(plan.slot_bytes)} of recurrent state, and as much to keep it for "
            f"later ones, but the cache has {_size(size)} in all; give it more memory"
        )
    return min(room, max_seqs + (MAX_SNAPSHOTS if with_snapshots else 0))


def _longest_text(plan: CachePlan, num_blocks: int, limit: int, max_chunk: int) -> int:
    """The longest text, at most ``limit`` tokens, that ``num_blocks`` can hold."""
    if plan.blocks_held(limit, max_chunk) <= num_blocks:
        return limit
    low, high = 0, limit // BLOCK_SIZE
    while low < high:
        middle = (low + high + 1) // 2
        if plan.blocks_held(middle * BLOCK_SIZE, max_chunk) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low * BLOCK_SIZE


def _size(num_bytes: int) -> str:
    for unit, factor in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} bytes"
