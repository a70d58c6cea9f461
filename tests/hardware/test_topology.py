from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardware.machines import with_cores, write
from tokenmill.hardware.topology import CacheLevel, parse_cpu_list, read_topology


def test_cores_and_siblings(tmp_path: Path) -> None:
    topology = read_topology(with_cores(tmp_path, ["0,2", "1,3", "0,2", "1,3"]), range(4))
    assert topology.cores == ((0, 2), (1, 3))
    assert topology.has_smt
    assert topology.num_cpus == 4


def test_affinity_splits_a_core(tmp_path: Path) -> None:
    topology = read_topology(with_cores(tmp_path, ["0-1", "0-1", "2-3", "2-3"]), {1, 2})
    assert topology.cores == ((1,), (2,))
    assert not topology.has_smt
    assert (topology.num_cpus, topology.allowed) == (4, (1, 2))


def test_caches_are_counted_by_who_shares_them(tmp_path: Path) -> None:
    files = {}
    for cpu in range(4):
        first = f"devices/system/cpu/cpu{cpu}/cache"
        files |= {
            f"{first}/index0/level": "1",
            f"{first}/index0/type": "Data",
            f"{first}/index0/size": "32K",
            f"{first}/index0/shared_cpu_list": str(cpu),
            f"{first}/index3/level": "3",
            f"{first}/index3/type": "Unified",
            f"{first}/index3/size": "16M",
            f"{first}/index3/shared_cpu_list": "0-1" if cpu < 2 else "2-3",
        }
    topology = read_topology(write(with_cores(tmp_path, list("0123")), files), range(4))
    assert topology.caches == (
        CacheLevel(1, "data", 32 << 10, 4),
        CacheLevel(3, "unified", 16 << 20, 2),
    )


def test_nodes_in_order(tmp_path: Path) -> None:
    nodes = {
        "devices/system/node/node10/cpulist": "3",
        "devices/system/node/node2/cpulist": "0-2",
        "devices/system/node/node3/cpulist": "",
        "devices/system/node/possible": "0-10",
    }
    assert read_topology(write(tmp_path, nodes), {0}).nodes == ((0, 1, 2), (3,))


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    topology = read_topology(tmp_path, {0, 1})
    assert topology.cores == ((0,), (1,))
    assert topology.caches == topology.nodes == ()


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8\n", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ()), ("x-3", ()), ("1-", (1,)), ("-1", ())],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


def test_this_machine() -> None:
    topology = read_topology()
    assert topology.allowed
    assert sorted(cpu for core in topology.cores for cpu in core) == list(topology.allowed)
