"""Choosing among providers by measurement."""

from __future__ import annotations

import pytest

from tokenmill.ops.choice import MEASURED_AT, NUM_CHOICES, KernelChoices
from tokenmill.ops.rivals import RivalChoices

NAMES = ("native", "other")


def measure_as(seconds: dict[str, tuple[float, ...]], calls: list[str]):  # type: ignore[no-untyped-def]
    def measure(name: str, rows: int) -> float:
        calls.append(name)
        return seconds[name][MEASURED_AT.index(rows)]

    return measure


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ((1.0, 1.0, 1.0, 1.0), "native"),
        ((0.97, 0.97, 0.97, 0.97), "native"),  # too little to change what is computed
        ((0.9, 0.9, 0.9, 0.9), "other"),
        ((3.0, 1.0, 1.0, 0.5), "native"),  # what a wide batch gains, a narrow one loses
        ((1.2, 0.9, 0.5, 0.4), "other"),
    ],
)
def test_one_provider_for_all_widths(times: tuple[float, ...], chosen: str) -> None:
    choices = RivalChoices({})
    measure = measure_as({"native": (1.0,) * 4, "other": times}, [])
    assert choices.choose("m", NAMES, measure) == chosen
    assert choices.used == {"m": chosen}
    assert choices.known == {"m": (chosen,) * NUM_CHOICES}
    assert choices.measured == 1


def test_what_is_known_is_not_measured_again() -> None:
    calls: list[str] = []
    measure = measure_as({"native": (1.0,) * 4, "other": (9.0,) * 4}, calls)
    choices = RivalChoices({"m": ("other",) * NUM_CHOICES})
    assert choices.look_up("m", NAMES) == "other"
    assert choices.choose("m", NAMES, measure) == "other"
    assert (calls, choices.measured) == ([], 0)


@pytest.mark.parametrize("known", [("gone",) * 4, ("native", "other", "other", "other"), ()])
def test_what_makes_no_sense_is_measured(known: tuple[str, ...]) -> None:
    calls: list[str] = []
    choices = RivalChoices({"m": known})
    assert choices.look_up("m", NAMES) is None
    measure = measure_as({"native": (1.0,) * 4, "other": (9.0,) * 4}, calls)
    assert choices.choose("m", NAMES, measure) == "native"
    assert set(calls) == set(NAMES)


def test_switched_off_the_preferred_one_is_taken_unless_another_is_pinned() -> None:
    calls: list[str] = []
    measure = measure_as({"native": (9.0,) * 4, "other": (1.0,) * 4}, calls)
    choices = RivalChoices({"pinned": ("other",) * NUM_CHOICES}, measures=False)
    assert choices.choose("m", NAMES, measure) == "native"
    assert choices.choose("pinned", NAMES, measure) == "other"
    assert calls == []


def test_kernel_choices_share_what_is_known() -> None:
    known: dict[str, tuple[str, ...]] = {}
    rivals, kernels = RivalChoices(known), KernelChoices(["a", "b"], lambda name: True, known)
    rivals.choose("m", NAMES, lambda name, rows: 1.0)
    kernels.choose("linear", lambda name, rows: 1.0, 1000)
    assert set(known) == {"m", "linear"}
