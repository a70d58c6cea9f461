from __future__ import annotations

import json

import pytest

from tokenmill.cli import main


def test_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for name in ("CPU", "instruction sets", "cores", "caches", "NUMA nodes", "memory free", "threads"):
        assert any(line.startswith(name) for line in out.splitlines()), name


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json", "--threads", "3"]) == 0
    machine = json.loads(capsys.readouterr().out)["machine"]
    assert machine["threads"] == {"count": 3, "why": "as asked for"}
    assert machine["cpus_allowed"] >= machine["physical_cores_allowed"] >= 1
