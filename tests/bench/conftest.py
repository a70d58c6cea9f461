from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"


@pytest.fixture(scope="session", autouse=True)
def bench_is_importable() -> Iterator[None]:
    """The scripts of bench/ import each other as they do when they are run."""
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))


@pytest.fixture(scope="session")
def compare(bench_is_importable: None) -> ModuleType:
    return import_module("compare")


@pytest.fixture(scope="session")
def engines(bench_is_importable: None) -> ModuleType:
    return import_module("engines")


@pytest.fixture(scope="session")
def figures(bench_is_importable: None) -> ModuleType:
    return import_module("figures")


@pytest.fixture(scope="session")
def report(bench_is_importable: None) -> ModuleType:
    return import_module("report")


@pytest.fixture(scope="session")
def peer(bench_is_importable: None) -> ModuleType:
    return import_module("peer")


@pytest.fixture(scope="session")
def startup(bench_is_importable: None) -> ModuleType:
    return import_module("startup")
