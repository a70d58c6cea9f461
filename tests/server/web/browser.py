"""A real browser for tests: Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import playwright
import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")


def find_chromium() -> str | None:
    """The browser's program, from $TOKENMILL_CHROMIUM or the path."""
    named = os.environ.get("TOKENMILL_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def find_node() -> str:
    """The JavaScript engine that comes with Playwright."""
    return str(Path(playwright.__file__).parent / "driver" / "node")


@contextmanager
def browsing() -> Iterator[Browser]:
    """Skips the test if there is no browser."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium: install one (Debian: apt install chromium) or set TOKENMILL_CHROMIUM")
    # Chromium's own sandbox refuses to run as root, and in many containers.
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
