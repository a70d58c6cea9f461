"""Every model test runs over each provider there is."""

from __future__ import annotations

import importlib.util

import pytest

from tokenmill.ops.reference import ReferenceProvider
from tokenmill.ops.table import OpTable


@pytest.fixture(params=["reference", "native"])
def ops(request: pytest.FixtureRequest) -> OpTable:
    """An operator table as the engine would build it."""
    if request.param == "reference":
        return OpTable([ReferenceProvider()])
    if importlib.util.find_spec("tokenmill._native") is None:
        pytest.skip("the native module is not built")
    from tokenmill.ops.native import load_provider

    provider, reason = load_provider(2)
    assert provider is not None, f"the native module is built but not used: {reason}"
    return OpTable([provider, ReferenceProvider()])
