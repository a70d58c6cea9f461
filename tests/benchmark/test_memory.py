from __future__ import annotations

from pathlib import Path

from tokenmill.benchmark.memory import peak_rss_bytes, rss_bytes


def test_linux(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t 1 kB\n")
    assert peak_rss_bytes(tmp_path / "status") == 2 << 20
    assert rss_bytes(tmp_path / "status") == 1 << 10


def test_elsewhere(tmp_path: Path) -> None:
    assert peak_rss_bytes(tmp_path / "absent") > 1 << 20
    assert rss_bytes(tmp_path / "absent") is None


def test_this_process() -> None:
    assert peak_rss_bytes() > 1 << 20
