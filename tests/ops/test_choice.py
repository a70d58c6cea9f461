"""Choosing kernels by measurement: what is measured, kept, pinned and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.ops.native_cases import count, random_matrix
from tokenmill import _native
from tokenmill.errors import ConfigError
from tokenmill.ops.choice import (
    MEASURED_AT,
    NUM_CHOICES,
    ChoiceFile,
    KernelChoices,
    read_choices,
    write_choices,
)
from tokenmill.ops.native import load_provider
from tokenmill.ops.table import Linear

FAST_FROM_32 = {"a": (1.0, 1.0, 1.0, 1.0), "b": (1.2, 0.99, 0.5, 0.4)}


def measure_as(seconds: dict[str, tuple[float, ...]], calls: list[tuple[str, int]]):  # type: ignore[no-untyped-def]
    def measure(name: str, rows: int) -> float:
        calls.append((name, rows))
        return seconds[name][MEASURED_AT.index(rows)]

    return measure


def test_the_fastest_is_chosen_if_it_is_clearly_faster() -> None:
    calls: list[tuple[str, int]] = []
    choices = KernelChoices(["a", "b"], lambda name: True)
    found = choices.choose("linear", measure_as(FAST_FROM_32, calls), 1000)
    assert found == ("a", "a", "b", "b")
    assert {rows for _, rows in calls} == set(MEASURED_AT)
    assert (choices.measured, choices.known) == (1, {"linear": found})
    assert choices.choose("linear", measure_as({}, []), 1000) == found


def test_widths_that_never_occur_are_not_measured() -> None:
    calls: list[tuple[str, int]] = []
    choices = KernelChoices(["a", "b"], lambda name: True)
    seconds = {"a": (1.0,) * 4, "b": (0.1,) * 4}
    assert choices.choose("logits", measure_as(seconds, calls), 8) == ("b", "b", "a", "a")
    assert max(rows for _, rows in calls) <= 8


def test_nothing_is_measured_where_there_is_no_choice() -> None:
    calls: list[tuple[str, int]] = []
    measure = measure_as(FAST_FROM_32, calls)
    assert KernelChoices(["a"], lambda name: True).choose("x", measure, 9) == ("a",) * 4
    assert KernelChoices(["a", "b"], lambda name: name == "a").choose("x", measure, 9) == ("a",) * 4
    off = KernelChoices(["a", "b"], lambda name: True, measures=False)
    assert off.choose("x", measure, 9) == ("a",) * 4
    assert calls == []


def test_what_is_known_is_taken_if_it_works_here() -> None:
    known = {"x": ("b",) * 4, "y": ("gone",) * 4}
    choices = KernelChoices(["a", "b"], lambda name: True, dict(known))
    assert choices.choose("x", measure_as({}, []), 9) == ("b",) * 4
    assert choices.measured == 0
    again = KernelChoices(["a", "b"], lambda name: name == "a", dict(known))
    assert again.choose("x", measure_as({}, []), 9) == ("a",) * 4
    other = KernelChoices(["a", "b"], lambda name: True, dict(known))
    assert other.choose("y", measure_as(FAST_FROM_32, []), 1000) == ("a", "a", "b", "b")


def test_choices_are_kept_for_each_machine(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "choices.json"
    first, second = ChoiceFile(path, "one"), ChoiceFile(path, "two")
    assert first.load() == {}
    first.save({"x": ("a",) * NUM_CHOICES})
    second.save({"x": ("b",) * NUM_CHOICES})
    assert (first.load(), second.load()) == ({"x": ("a",) * 4}, {"x": ("b",) * 4})
    assert [p.name for p in path.parent.iterdir()] == ["choices.json"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"one": 3}', '{"one": {"x": ["a"]}}', '{"one": {"x": [1,2,3,4]}}']
)
def test_a_damaged_file_is_measured_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / "choices.json"
    path.write_text(text)
    assert ChoiceFile(path, "one").load() == {}


def test_a_directory_that_can_not_be_written_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    ChoiceFile(tmp_path / "file" / "choices.json", "one").save({})
    assert "not kept" in caplog.text


def test_exported_choices_can_be_pinned(tmp_path: Path) -> None:
    path = tmp_path / "pinned.json"
    write_choices(path, {"x": ("a", "a", "b", "b")})
    assert read_choices(path) == {"x": ("a", "a", "b", "b")}
    path.write_text(json.dumps({"choices": {"x": ["a"]}}))
    with pytest.raises(ConfigError, match="info MODEL --export-choices"):
        read_choices(path)
    with pytest.raises(ConfigError, match="can't be read"):
        read_choices(tmp_path / "absent.json")


def test_bits_do_not_depend_on_the_choice() -> None:
    variants = [name for name in _native.available_kernels() if name != "portable"]
    if len(variants) < 2:
        pytest.skip("this CPU runs only one variant")
    gen = torch.Generator().manual_seed(4)
    raw = random_matrix("Q4_K", 48, 512, gen)
    x = torch.randn(150, 512, generator=gen)

    def run(names: tuple[str, ...], rows: int) -> torch.Tensor:
        provider, reason = load_provider(
            2,
            make_choices=lambda found, works: KernelChoices(
                found, works, {"linear 48x512 Q4_K": names}, measures=False
            ),
        )
        assert provider is not None, reason
        assert provider.choices is not None
        out = torch.zeros(rows, 48)
        provider.bind(Linear(provider.pack([raw])))(count(rows), x, out)
        assert list(provider.choices.used.values()) == [names]
        return out

    want = run((variants[0],) * 4, 150)
    for rows in (1, 5, 40, 150):
        assert torch.equal(run((variants[1],) * 4, rows), want[:rows])
        assert torch.equal(
            run((variants[-1], variants[0], variants[1], variants[-1]), rows), want[:rows]
        )


def test_a_provider_measures_what_it_binds() -> None:
    provider, reason = load_provider(2, make_choices=lambda names, works: KernelChoices(names, works))
    assert provider is not None, reason
    assert provider.choices is not None
    raw = random_matrix("Q4_0", 48, 512, torch.Generator().manual_seed(4))
    provider.bind(Linear(provider.pack([raw])))
    (names,) = provider.choices.used.values()
    assert set(names) <= set(_native.available_kernels())
    assert provider.choices.measured == (len(provider.choices.variants) > 1)
