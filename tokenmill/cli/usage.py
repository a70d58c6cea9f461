"""Values of options, and what is said about wrong ones."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tokenmill.errors import ConfigError, RequestError, TokenmillError

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class UsageError(TokenmillError):
    """The command line asks for something that does not exist or contradicts itself."""


@contextmanager
def as_usage_errors() -> Iterator[None]:
    """Invalid settings come from the command line here, so they are wrong usage."""
    try:
        yield
    except (ConfigError, RequestError) as error:
        raise UsageError(str(error)) from error


def size(text: str) -> int:
    """Bytes: "2G", "512 MiB", "1.5g" or a plain number; units are powers of 1024."""
    match = SIZE.fullmatch(text.strip())
    if match is None or not int(float(match[1]) * FACTORS[match[2].upper()]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 2G or 512M")
    return int(float(match[1]) * FACTORS[match[2].upper()])


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def seconds(text: str) -> float:
    """A duration of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def positive_list(text: str) -> tuple[int, ...]:
    """Whole numbers from 1, separated by commas."""
    return tuple(positive(part.strip()) for part in text.split(","))


def port(text: str) -> int:
    """A TCP port; 0 lets the system choose."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)
