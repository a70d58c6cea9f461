"""``tokenmill models``: what the cache holds."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokenmill.cli.figures import size_text

if TYPE_CHECKING:
    from tokenmill.weights.model_cache import CachedModel


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "models",
        parents=[common],
        help="list the models that are cached",
        description="List the models that are cached, with size and source, and the aliases there are.",
    )
    parser.add_argument(
        "--remove", metavar="MODEL", help="delete this model from the cache instead of listing"
    )
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    from tokenmill.weights.aliases import ALIASES
    from tokenmill.weights.model_cache import models_directory
    from tokenmill.weights.packed_directory import packed_directory, packed_entries, remove_packed
    from tokenmill.weights.sources import list_models, remove_model

    if args.remove is not None:
        removed = remove_model(args.remove)
        remove_packed(packed_directory(), removed.path)
        if args.json:
            print(json.dumps({"removed": _entry(removed)}))
        else:
            print(f"removed {removed.name} ({size_text(removed.size_bytes)})")
        return 0
    cached = list_models()
    packed = packed_entries(packed_directory())
    names = {model.name for model in cached}
    missing = {name: alias for name, alias in ALIASES.items() if name not in names}
    if args.json:
        available = [
            {"name": a.name, "description": a.description, "size_bytes": a.size_bytes}
            for a in missing.values()
        ]
        values = {"models": [_entry(model) for model in cached], "available": available}
        values["packed"] = [
            {"path": str(p.path), "model": p.model, "size_bytes": p.size_bytes} for p in packed
        ]
        print(json.dumps({"directory": str(models_directory()), **values}))
        return 0
    if cached:
        _print_table([(m.name, size_text(m.size_bytes), m.source, str(m.path)) for m in cached])
    else:
        print(f"no models are cached in {models_directory()}")
    if missing:
        print("\nknown by name, not cached:")
        _print_table([(a.name, size_text(a.size_bytes), a.description) for a in missing.values()])
    if packed:
        print("\npacked weights of earlier starts:")
        _print_table([(size_text(p.size_bytes), p.model, str(p.path)) for p in packed])
    return 0


def _entry(model: CachedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "size_bytes": model.size_bytes,
        "source": model.source,
        "path": str(model.path),
        "sha256": model.sha256,
        "created": model.created,
    }


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
