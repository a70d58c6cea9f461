from __future__ import annotations

import argparse

import pytest

from tokenmill.cli.usage import UsageError, as_usage_errors, port, positive, positive_list, size
from tokenmill.errors import CheckpointError, ConfigError, RequestError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("123", 123),
        ("2G", 2 << 30),
        ("2 GiB", 2 << 30),
        ("512mb", 512 << 20),
        ("1.5g", 3 << 29),
        ("64K", 64 << 10),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text: str, number: int) -> None:
    assert size(text) == number


@pytest.mark.parametrize("text", ["", "G", "0", "-1G", "2X", "1.2.3G", "0.0001"])
def test_not_a_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a size"):
        size(text)


def test_numbers() -> None:
    assert positive("12") == 12
    assert positive_list("1, 4,16") == (1, 4, 16)
    assert port("0") == 0
    assert port("65535") == 65535


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "٣", "x"])
def test_not_positive(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        positive(text)
    with pytest.raises(argparse.ArgumentTypeError):
        positive_list(f"1,{text}")


@pytest.mark.parametrize("text", ["65536", "-1", "http"])
def test_not_a_port(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a port"):
        port(text)


def test_settings_that_are_wrong_usage() -> None:
    for error in (ConfigError("a"), RequestError("a")):
        with pytest.raises(UsageError), as_usage_errors():
            raise error
    with pytest.raises(CheckpointError), as_usage_errors():
        raise CheckpointError("a")
