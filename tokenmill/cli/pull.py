"""``tokenmill pull``: fetch a model into the cache."""

from __future__ import annotations

import argparse
from typing import Any

from tokenmill.cli import options

EPILOG = """\
Prints where the model lies. TOKENMILL_HOME names the cache (default: ~/.cache/tokenmill).

examples:
  tokenmill pull demo
  tokenmill pull hf:ORG/NAME
"""


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "pull",
        parents=[common],
        help="fetch a model into the cache",
        description="Fetch a model into the cache, so that later commands start at once.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model(parser)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    from tokenmill.weights.sources import resolve

    print(resolve(args.model, progress=not args.quiet))
    return 0
