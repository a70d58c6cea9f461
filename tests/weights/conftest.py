"""Fixtures of the weights tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model cache."""
    home = tmp_path / "cache-home"
    monkeypatch.setenv("TOKENMILL_HOME", str(home))
    return home
