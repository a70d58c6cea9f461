from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.ops.table import LOGITS, Attention, Embed, Linear, RopeTable, operator_name
from tokenmill.ops.work import StepShape, Work, work_of

DECODE = StepShape(((99, 99), (49, 49)), logits=2)
PREFILL = StepShape(((0, 7),), logits=1)


@dataclass(frozen=True)
class FakeWeight:
    out_features: int = 6
    in_features: int = 32
    formats: tuple[str, ...] = ("Q4_K",)
    nbytes: int = 120
    provider: str = "fake"

    def dense(self) -> torch.Tensor:
        raise AssertionError("nobody looks inside")


def attention(window: int = 0) -> Attention:
    return Attention(4, 2, 8, scale=1.0, cache_dtype=torch.float16, window=window)


def test_a_product_reads_its_weight_once_and_multiplies_every_row() -> None:
    linear = Linear(FakeWeight())
    assert work_of(linear, DECODE) == Work(120, 2 * 2 * 6 * 32, "int8")
    assert work_of(linear, PREFILL) == Work(120, 2 * 8 * 6 * 32, "int8")
    assert work_of(Linear(FakeWeight(formats=("F16", "BF16"))), DECODE).arithmetic == "fp32"


def test_logits_are_computed_for_the_rows_that_want_them() -> None:
    logits = Linear(FakeWeight(), label=LOGITS)
    assert work_of(logits, PREFILL).operations == 2 * 1 * 6 * 32
    assert work_of(logits, StepShape(((0, 7),), logits=0)) == Work(0, 0, "int8")


def test_an_embedding_reads_a_row_for_each_token() -> None:
    assert work_of(Embed(FakeWeight()), DECODE) == Work(2 * 120 / 6)


def test_attention_reads_keys_and_values() -> None:
    position_bytes = 2 * 2 * 8 * 2
    assert work_of(attention(), DECODE) == Work(150 * position_bytes, 4 * 8 * 4 * 150)
    assert work_of(attention(), PREFILL) == Work(8 * position_bytes, 4 * 8 * 4 * 36)
    assert work_of(attention(window=10), DECODE) == Work(20 * position_bytes, 4 * 8 * 4 * 20)


def test_small_operators_count_as_nothing() -> None:
    assert work_of(RopeTable(torch.ones(4)), DECODE) == Work()


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=4),
    st.integers(0, 30),
)
def test_positions_seen_are_those_of_the_definition(spans: list[tuple[int, int]], window: int) -> None:
    shape = StepShape(tuple((first, first + more) for first, more in spans), logits=1)
    read = pairs = 0
    for first, last in shape.spans:
        seen: set[int] = set()
        for position in range(first, last + 1):
            mine = range(max(0, position - window + 1) if window else 0, position + 1)
            seen |= set(mine)
            pairs += len(mine)
        read += len(seen)
    assert shape.seen(window) == (read, pairs)
    assert shape.tokens == sum(more + 1 for _, more in spans)


def test_work_adds_up() -> None:
    assert Work(1, 10, "int8") + Work(2, 3, "fp32") == Work(3, 13, "int8")
    assert Work(1, 1, "int8") + Work(2, 3, "fp32") == Work(3, 4, "fp32")


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (Linear(FakeWeight(), label="down", act="silu", accumulate=True), "silu + down 6x32 + add"),
        (Linear(FakeWeight(), label="qkv", norm=torch.ones(32)), "norm + qkv 6x32"),
        (Linear(FakeWeight()), "linear 6x32"),
        (attention(), "attention"),
    ],
)
def test_names(params: Any, name: str) -> None:
    assert operator_name(params) == name
