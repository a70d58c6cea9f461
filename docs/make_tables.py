"""Writes the tables that follow from the code: models and formats (README.md), options (docs/cli.md).

    python docs/make_tables.py            rewrite the pages
    python docs/make_tables.py --check    fail if one is out of date

A table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokenmill.cli.serve_options import add_server_options
from tokenmill.models.registry import FAMILIES
from tokenmill.weights.aliases import ALIASES
from tokenmill.weights.ggml_formats import FORMATS

README = Path(__file__).parent.parent / "README.md"
PAGES = (README, Path(__file__).parent / "cli.md")

SERVER_GROUPS = ("server", "security", "limits (0 seconds: no limit)", "operation")
"""Titles in the help of ``tokenmill serve``."""

WEIGHTLESS = ("I8", "I16", "I32", "I64", "F64")
"""Formats that files hold, but no weights."""


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def models_table() -> str:
    """Families, by the names that files give them."""
    rows = [
        [
            family.name,
            ", ".join(f"`{name}`" for name in family.architectures),
            ", ".join(f"`{name}`" for name in family.gguf) or "-",
            f"[{Path(family.test).name}]({family.test})",
        ]
        for family in FAMILIES
    ]
    return table(["family", "config.json", "GGUF", "tested by"], rows)


def formats_table() -> str:
    """Weight formats by kind of file."""
    gguf = [name for name in FORMATS if name not in WEIGHTLESS]
    rows = [
        ["Hugging Face directory (safetensors, sharded or not)", "F32, F16, BF16"],
        ["GGUF file", ", ".join(gguf)],
        ["quantised while loading (`--quantization`)", "int8, int4"],
    ]
    return table(["checkpoint", "weights"], rows)


def aliases_table() -> str:
    """Models that have short names."""
    rows = [
        [f"`{alias.name}`", alias.description, f"{alias.size_bytes / 1e6:.0f} MB"]
        for alias in ALIASES.values()
    ]
    return table(["name", "model", "download"], rows)


def options_table(title: str) -> str:
    """Options of ``tokenmill serve`` that its help lists below this title."""
    parser = argparse.ArgumentParser(add_help=False)
    add_server_options(parser)
    (group,) = [group for group in parser._action_groups if group.title == title]
    rows = []
    for action in group._group_actions:
        value = f" {action.metavar}" if action.metavar else ""
        names = ", ".join(f"`{name}{value}`" for name in action.option_strings)
        rows.append([names, (action.help or "") % {"default": action.default}])
    return table(["option", "meaning"], rows)


def tables_of(page: Path) -> dict[str, str]:
    """The tables of a page, by the names in their marks."""
    if page == README:
        return {"models": models_table(), "formats": formats_table(), "aliases": aliases_table()}
    return {title: options_table(title) for title in SERVER_GROUPS}


def with_tables(text: str, page: Path) -> str:
    """The page's text with every table made anew. Raises ValueError if it lacks the marks of one."""
    for name, content in tables_of(page).items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
            raise ValueError(f"{page.name} must have the marks of the table {name!r} once")
        before, _, rest = text.partition(start)
        text = f"{before}{start}{content}\n{end}{rest.partition(end)[2]}"
    return text


def main() -> int:
    """Rewrite or check."""
    parser = argparse.ArgumentParser(description="Write the tables of README.md and docs/cli.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if out of date")
    args = parser.parse_args()
    status = 0
    for page in PAGES:
        before = page.read_text("utf-8")
        after = with_tables(before, page)
        if before == after:
            continue
        if args.check:
            print(f"{page.name} is out of date: run python docs/make_tables.py", file=sys.stderr)
            status = 1
        else:
            page.write_text(after, "utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
