from __future__ import annotations

import pytest

from tokenmill.hardware import ceilings
from tokenmill.ops import native


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "SECONDS", 0.0)


def test_with_torch_alone() -> None:
    found = ceilings.measure_ceilings(1, native=False, buffer_bytes=1 << 20)
    assert found.measured_by == "torch"
    assert found.read_bytes_s > 0
    assert found.fp32_ops_s > 0
    assert found.int8_ops_s is None


def test_falls_back_without_the_native_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load_provider", lambda *_: (None, "not built"))
    assert ceilings.measure_ceilings(1, buffer_bytes=1 << 20).measured_by == "torch"


def test_native() -> None:
    provider, reason = native.load_provider(1)
    if provider is None:
        pytest.skip(reason)
    found = ceilings.measure_ceilings(1, buffer_bytes=1 << 20)
    assert found.measured_by == "native"
    assert found.read_bytes_s > 0
    assert found.fp32_ops_s > 0
    assert found.int8_ops_s is not None
    assert found.int8_ops_s > 0
