"""Imports what takes long."""

from __future__ import annotations

import importlib


def load_libraries() -> None:
    """Import torch, and all that an engine needs.

    Call it before the function that makes the engine, not in it: where numpy is missing, torch keeps
    the frames of its first import alive, and what their variables hold, until the process has ended.
    """
    importlib.import_module("tokenmill.engine.async_engine")
