from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardware.machines import with_cores
from tokenmill.errors import ConfigError
from tokenmill.hardware.threads import choose_threads
from tokenmill.hardware.topology import Topology, read_topology


@pytest.fixture
def smt(tmp_path: Path) -> Topology:
    """Four cores of two hardware threads each."""
    return read_topology(with_cores(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2), range(8))


def test_one_for_each_core(smt: Topology) -> None:
    choice = choose_threads(None, smt)
    assert (choice.count, choice.cpus) == (4, (0, 1, 2, 3))
    assert "4 physical cores (8 CPUs)" in choice.why
    assert "left idle" in choice.why


def test_affinity(tmp_path: Path) -> None:
    topology = read_topology(with_cores(tmp_path, ["0-1", "0-1", "2-3", "2-3"]), {3})
    choice = choose_threads(None, topology)
    assert (choice.count, choice.cpus) == (1, (3,))
    assert "3 more are not ours" in choice.why


@pytest.mark.parametrize(("quota", "count"), [(2.5, 2), (0.3, 1)])
def test_a_quota_below_the_cores(smt: Topology, quota: float, count: int) -> None:
    choice = choose_threads(None, smt, quota)
    assert (choice.count, choice.cpus) == (count, ())
    assert f"{quota:g} CPUs" in choice.why


def test_a_quota_that_does_not_bind(smt: Topology) -> None:
    assert choose_threads(None, smt, 4.0).cpus == (0, 1, 2, 3)


def test_a_requested_number(smt: Topology) -> None:
    assert choose_threads(8, smt).count == 8
    assert choose_threads(8, smt).cpus == ()
    assert choose_threads(4, smt).cpus == (0, 1, 2, 3)
    assert choose_threads(4, smt, 2.0).cpus == ()


def test_not_a_number_of_threads(smt: Topology) -> None:
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        choose_threads(0, smt)


def test_this_machine() -> None:
    choice = choose_threads()
    assert 1 <= choice.count <= len(read_topology().allowed)
