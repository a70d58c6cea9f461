from __future__ import annotations

from pathlib import Path

from tokenmill.engine.threads import plan_threads


def machine(root: Path, siblings: list[str], files: dict[str, str] | None = None) -> Path:
    for cpu, text in enumerate(siblings):
        path = root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        path.parent.mkdir(parents=True)
        path.write_text(text + "\n")
    for name, text in (files or {}).items():
        path = root / "fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_one_thread_a_physical_core(tmp_path: Path) -> None:
    sys = machine(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2)
    plan = plan_threads(None, sys, frozenset(range(8)))
    assert (plan.count, plan.cpus) == (4, (0, 1, 2, 3))
    assert plan.why == "4 physical cores of 8 CPUs allowed"


def test_affinity(tmp_path: Path) -> None:
    sys = machine(tmp_path, ["0-1", "0-1", "2-3", "2-3"])
    assert plan_threads(None, sys, frozenset({1, 2, 3})).cpus == (1, 2)


def test_quota(tmp_path: Path) -> None:
    sys = machine(tmp_path, ["0", "1", "2"], {"cpu.max": "150000 100000"})
    plan = plan_threads(None, sys, frozenset({0, 1, 2}))
    assert (plan.count, plan.cpus) == (1, ())
    assert "1.5" in plan.why


def test_no_quota_and_version_1(tmp_path: Path) -> None:
    sys = machine(
        tmp_path / "a", ["0", "1"], {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    )
    assert plan_threads(None, sys, frozenset({0, 1})).count == 2
    sys = machine(
        tmp_path / "b", ["0", "1"], {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}
    )
    assert plan_threads(None, sys, frozenset({0, 1})).count == 1
    sys = machine(tmp_path / "c", ["0", "1"], {"cpu.max": "max 100000"})
    assert plan_threads(None, sys, frozenset({0, 1})).count == 2


def test_an_asked_for_number_wins(tmp_path: Path) -> None:
    sys = machine(tmp_path, ["0", "1"])
    assert plan_threads(5, sys, frozenset({0, 1})).count == 5
    assert plan_threads(5, sys, frozenset({0, 1})).cpus == ()


def test_this_machine() -> None:
    assert plan_threads(None).count >= 1
