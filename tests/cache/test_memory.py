from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tokenmill.cache.memory import DEFAULT_CAP, GIB, available_memory, plan_memory
from tokenmill.cache.plan import plan_groups
from tokenmill.cache.spec import FullAttentionSpec
from tokenmill.config import CacheConfig, SchedulerConfig
from tokenmill.errors import ConfigError

PLAN = plan_groups([FullAttentionSpec(4, 64, torch.float16)] * 16)
"""16 KiB a layer and block, so a block is 256 KiB and a token 16 KiB."""


def machine(root: Path, available_kb: int, cgroup: str, files: dict[str, str]) -> int:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal:  99999999 kB\nMemAvailable:   {available_kb} kB\nSwapFree: 0 kB\n"
    )
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return available_memory(root / "proc", root / "cgroup")


def test_without_limits_it_is_what_the_system_has(tmp_path: Path) -> None:
    assert machine(tmp_path, 1000, "0::/\n", {}) == 1000 * 1024


def test_cgroup_v2_limit_less_usage_but_not_less_reclaimable(tmp_path: Path) -> None:
    files = {
        "a/memory.max": "1000000\n",
        "a/memory.current": "400000\n",
        "a/memory.stat": "anon 1\ninactive_file 100000\n",
    }
    assert machine(tmp_path, 1 << 30, "0::/a\n", files) == 700_000


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    files = {
        "a/memory.max": "500000",
        "a/memory.current": "100000",
        "a/b/memory.max": "max",
        "a/b/memory.current": "1",
    }
    assert machine(tmp_path, 1 << 30, "0::/a/b\n", files) == 400_000


def test_in_a_container_the_root_counts(tmp_path: Path) -> None:
    files = {"memory.max": "300000", "memory.current": "0"}
    assert machine(tmp_path, 1 << 30, "0::/not/visible\n", files) == 300_000


def test_cgroup_v1(tmp_path: Path) -> None:
    files = {
        "memory/x/memory.limit_in_bytes": "800000",
        "memory/x/memory.usage_in_bytes": "100000",
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "5",
    }
    assert machine(tmp_path, 1 << 30, "5:cpu:/\n4:memory:/x\n0::/\n", files) == 700_000


def test_more_used_than_allowed_is_nothing(tmp_path: Path) -> None:
    files = {"memory.max": "100", "memory.current": "200"}
    assert machine(tmp_path, 1 << 30, "0::/\n", files) == 0


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="explicitly"):
        available_memory(tmp_path, tmp_path)


def test_this_machine_has_memory() -> None:
    assert available_memory() > 0


def plan(
    available: int,
    *,
    memory: int | None = None,
    length: int | None = None,
    seqs: int = 4,
    limit: int = 8192,
):  # type: ignore[no-untyped-def]
    return plan_memory(
        PLAN,
        cache=CacheConfig(memory_bytes=memory),
        scheduler=SchedulerConfig(max_num_seqs=seqs, max_model_len=length),
        model_limit=limit,
        available_bytes=available,
    )


def test_no_more_than_the_requests_could_use() -> None:
    decided = plan(100 * GIB, length=1024)
    assert decided.pool_bytes == 4 * 1024 * 16384
    assert decided.full_requests == 4
    assert "4 requests" in decided.chosen_by


def test_the_default_cap_unless_one_request_needs_more() -> None:
    assert plan(100 * GIB, seqs=64).pool_bytes == DEFAULT_CAP
    assert plan(100 * GIB, limit=1_000_000).pool_bytes >= 1_000_000 * 16384


def test_a_share_of_what_is_free() -> None:
    decided = plan(GIB, seqs=8)
    assert 0.55 * GIB < decided.pool_bytes <= 0.6 * GIB
    assert decided.max_model_len == 8192


def test_the_models_limit_is_lowered_and_stated() -> None:
    decided = plan(GIB // 16)
    assert decided.max_model_len < 8192
    assert decided.max_model_len % 16 == 0
    assert decided.full_requests >= 1
    assert PLAN.blocks_held(decided.max_model_len + 16, 512) > decided.num_blocks
    assert any(f"max_model_len is {decided.max_model_len}" in line for line in decided.describe())


def test_an_asked_for_length_is_not_lowered() -> None:
    with pytest.raises(ConfigError, match=r"8192 tokens needs 128\.0 MiB.*lower max_model_len"):
        plan(GIB // 16, length=8192)


def test_an_explicit_size_wins() -> None:
    assert plan(GIB, memory=GIB).pool_bytes == GIB
    with pytest.raises(ConfigError, match=r"has only 1\.0 GiB left"):
        plan(GIB, memory=GIB + 1)
    with pytest.raises(ConfigError, match="as asked for"):
        plan(GIB, memory=1000)
    assert plan(100 * GIB, memory=1 << 20).max_model_len == 64
