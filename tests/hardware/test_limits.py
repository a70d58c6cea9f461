from __future__ import annotations

from pathlib import Path

from tests.hardware.machines import write
from tokenmill.hardware.limits import cpu_quota


def quota(root: Path, groups: dict[str, str], own: str = "") -> float | None:
    write(root, {f"cgroup/{name}": text for name, text in groups.items()})
    write(root, {"proc/self/cgroup": own})
    return cpu_quota(root / "cgroup", root / "proc")


def test_version_2(tmp_path: Path) -> None:
    assert quota(tmp_path, {"cpu.max": "150000 100000"}) == 1.5


def test_version_2_without_limit(tmp_path: Path) -> None:
    assert quota(tmp_path, {"cpu.max": "max 100000"}) is None


def test_the_smallest_of_nested_groups(tmp_path: Path) -> None:
    groups = {"a/cpu.max": "200000 100000", "a/b/cpu.max": "300000 100000", "other/cpu.max": "1 100000"}
    assert quota(tmp_path, groups, "0::/a/b") == 2.0


def test_version_1(tmp_path: Path) -> None:
    groups = {"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"}
    assert quota(tmp_path, groups, "4:cpu,cpuacct:/x\n1:memory:/y") == 0.5


def test_version_1_without_limit(tmp_path: Path) -> None:
    groups = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    assert quota(tmp_path, groups, "1:cpu:/") is None


def test_a_path_of_the_host_that_is_not_visible(tmp_path: Path) -> None:
    assert quota(tmp_path, {"cpu.max": "100000 100000"}, "0::/system.slice/docker-1.scope") == 1.0


def test_a_path_that_leads_out(tmp_path: Path) -> None:
    assert quota(tmp_path, {"cpu.max": "max 100000"}, "0::/../../x") is None


def test_broken_files(tmp_path: Path) -> None:
    assert quota(tmp_path, {"cpu.max": "1000 0"}, "nonsense") is None
    assert cpu_quota(tmp_path / "absent", tmp_path / "absent") is None
