"""What the page knows without a browser: Markdown, event streams, conversations, figures."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.server.web.browser import find_node

LOGIC = Path(__file__).parent / "logic"


@pytest.mark.parametrize("file", sorted(LOGIC.glob("*.test.mjs")), ids=lambda file: file.name)
def test_logic(file: Path) -> None:
    command = [find_node(), "--test", "--test-reporter=tap", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "\n# pass 0\n" not in done.stdout
