"""README.md and docs/ say what the code does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def make_tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_tables", ROOT / "docs/make_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["README.md", "docs/cli.md"])
def test_tables_are_up_to_date(name: str, make_tables: ModuleType) -> None:
    assert ROOT / name in make_tables.PAGES
    text = (ROOT / name).read_text("utf-8")
    assert make_tables.with_tables(text, ROOT / name) == text, "run python docs/make_tables.py"


def test_a_table_without_marks(make_tables: ModuleType) -> None:
    with pytest.raises(ValueError, match="models"):
        make_tables.with_tables("no tables here", make_tables.README)


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
