"""The command line. Nothing here imports torch until a command needs it."""

from __future__ import annotations

from tokenmill.cli.main import main

__all__ = ["main"]
