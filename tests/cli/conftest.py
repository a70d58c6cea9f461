from __future__ import annotations

import io
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.fake_engine import FakeEngine
from tokenmill.config import EngineConfig
from tokenmill.engine import async_engine


@dataclass
class CliEngine(FakeEngine):
    """A fake engine that can be shut down. config: what it was made from."""

    built: None = None
    config: EngineConfig | None = None
    is_shut_down: bool = False

    def shutdown(self) -> None:
        self.is_shut_down = True


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> CliEngine:
    """What commands get instead of a real engine."""
    engine = CliEngine()

    def from_config(config: EngineConfig) -> CliEngine:
        engine.config = config
        return engine

    monkeypatch.setattr(async_engine, "AsyncEngine", SimpleNamespace(from_config=from_config))
    return engine


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model fails the test."""

    def from_config(config: EngineConfig) -> Any:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(async_engine, "AsyncEngine", SimpleNamespace(from_config=from_config))


class Pipe:
    """Standard input that is no terminal."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)

    def isatty(self) -> bool:
        return False


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts bytes into standard input."""

    def put(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", Pipe(data))

    return put
