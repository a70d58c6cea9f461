"""zentorch as a provider: with a stand-in of its own making, and the real one where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.harness import OurModel, memory_checkpoint, raw_tensor
from tests.models.test_llama import llama
from tokenmill.config import ComputeConfig
from tokenmill.engine.build import choose_operators
from tokenmill.hardware import ThreadChoice
from tokenmill.ops.choice import NUM_CHOICES
from tokenmill.ops.reference import ReferenceProvider
from tokenmill.ops.rivals import ProviderFailed, RivalChoices, Rivals
from tokenmill.ops.table import Embed, Linear, OpParams, OpTable, Weight
from tokenmill.ops.zentorch import ZentorchProvider, load_zentorch
from tokenmill.weights.tensor import RawTensor

VERSION = f"{torch.__version__.split('+')[0]}.1"
REAL = importlib.util.find_spec("zentorch") is not None
REFERENCE = ReferenceProvider()
ONE = ThreadChoice(1, (), "test")

STAND_IN = """
import torch
library = torch.library.Library("zentorch", "FRAGMENT")
library.define("zentorch_weight_prepack_for_linear(Tensor weight) -> Tensor")
library.define("zentorch_linear_unary(Tensor x, Tensor weight, Tensor? bias=None, *, "
               "bool is_weight_prepacked=False) -> Tensor")
def multiply(x, weight, bias=None, *, is_weight_prepacked=False):
    return x @ weight.T
library.impl("zentorch_weight_prepack_for_linear", lambda weight: weight.clone(), "CPU")
library.impl("zentorch_linear_unary", multiply, "CPU")
"""
WRONG = STAND_IN.replace("x @ weight.T", "x @ weight.T * 1.5")
BY_PLACE = STAND_IN.replace("x @ weight.T", "x @ weight.T + torch.eye(len(x), len(weight)) * 1e-6")
REFUSING = STAND_IN.replace("return x @ weight.T", "raise RuntimeError('no AVX-512 here')")


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a stand-in for zentorch until the test ends."""
    if REAL:
        pytest.skip("the real zentorch is installed")

    def make(code: str = STAND_IN, version: str = VERSION) -> None:
        (tmp_path / "zentorch").mkdir()
        (tmp_path / "zentorch/__init__.py").write_text(code)
        info = tmp_path / f"zentorch-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: zentorch\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)

    yield make
    module = sys.modules.pop("zentorch", None)
    if hasattr(module, "library"):
        module.library._destroy()  # type: ignore[union-attr]
    for name in ("zentorch_linear_unary", "zentorch_weight_prepack_for_linear"):
        vars(torch.ops.zentorch).pop(name, None)


def matrix(rows: int, cols: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> RawTensor:
    generator = torch.Generator().manual_seed(seed)
    return raw_tensor(f"m{seed}", torch.randn(rows, cols, generator=generator).to(dtype))


def count(rows: int) -> Tensor:
    return torch.tensor([rows], dtype=torch.int32)


def run(provider: Any, params: Linear, x: Tensor, out: Tensor, *rest: Tensor) -> Tensor:
    provider.bind(params)(count(out.shape[0]), x, out, *rest)
    return out


def loaded() -> ZentorchProvider:
    provider, reason = load_zentorch(1)
    assert provider is not None, reason
    return provider


class Slow(ReferenceProvider):
    """The reference, and a pause in products."""

    def bind(self, params: OpParams) -> Callable[..., None]:
        inner = super().bind(params)
        if not isinstance(params, Linear):
            return inner

        def slowly(*arguments: Any) -> None:
            time.sleep(0.02)
            inner(*arguments)

        return slowly


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def pack(table: OpTable, *segments: RawTensor) -> Weight:
    return table.pack(segments, only_linear=True)


@pytest.mark.skipif(REAL, reason="zentorch is installed")
def test_absent_it_is_a_note_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    assert load_zentorch(1) == (None, "not installed")
    operators = choose_operators(ComputeConfig(providers=("reference", "zentorch")), ONE)
    assert "zentorch: not installed" in operators.notes
    assert warnings(caplog) == []


@pytest.mark.parametrize("version", ["2.3.0", "2.130.0.1", "5.2.1"])
def test_of_another_torch_it_is_skipped_with_one_line(
    install: Install, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    install("raise SystemExit('imported')", version)
    operators = choose_operators(ComputeConfig(providers=("zentorch",)), ONE)
    assert operators.rivals.providers == []
    assert len(warnings(caplog)) == 1
    assert f"version {version} does not go with torch" in warnings(caplog)[0]
    assert "tokenmill[zen]" in warnings(caplog)[0]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import a_module_that_is_missing",
            "fails to load (No module named",
        ),
        ("raise OSError('libzentorch.so: cannot open')", "libzentorch.so: cannot open"),
        ("", "its operators fail here"),
        (WRONG, "are wrong here"),
        (BY_PLACE, "depend on a row's place"),
        (REFUSING, "no AVX-512 here"),
    ],
)
def test_failing_it_is_skipped_with_one_line(
    install: Install, caplog: pytest.LogCaptureFixture, code: str, reason: str
) -> None:
    install(code)
    provider = loaded()
    rivals = Rivals([provider], RivalChoices({}))
    table = OpTable([REFERENCE], rivals)
    weights = [pack(table, matrix(20, 32)), pack(table, matrix(24, 32))]
    assert {weight.provider for weight in weights} == {"reference"}
    assert len(warnings(caplog)) == 1
    assert reason in warnings(caplog)[0]
    assert rivals.providers == []
    assert rivals.choices.known == {}  # it may work another time


def test_chosen_before_and_failing_now_it_is_replaced(install: Install) -> None:
    install(REFUSING)
    known = {"matrix 20x32 BF16 (reference or zentorch)": ("zentorch",) * NUM_CHOICES}
    table = OpTable([REFERENCE], Rivals([loaded()], RivalChoices(known)))
    assert pack(table, matrix(20, 32)).provider == "reference"


def test_faster_it_is_chosen_and_that_is_kept(install: Install) -> None:
    install()
    choices = RivalChoices({})
    table = OpTable([Slow()], Rivals([loaded()], choices))
    assert pack(table, matrix(20, 32), matrix(12, 32)).provider == "zentorch"
    assert choices.known == {"matrix 32x32 BF16 (reference or zentorch)": ("zentorch",) * NUM_CHOICES}
    assert choices.measured == 1
    assert pack(table, matrix(32, 32)).provider == "zentorch"
    assert choices.measured == 1


def test_slower_it_is_not_chosen(install: Install) -> None:
    install(STAND_IN.replace("return x", "import time; time.sleep(0.02); return x"))
    choices = RivalChoices({})
    table = OpTable([REFERENCE], Rivals([loaded()], choices))
    assert pack(table, matrix(20, 32)).provider == "reference"
    assert choices.known == {"matrix 20x32 BF16 (reference or zentorch)": ("reference",) * NUM_CHOICES}


def test_where_others_are_known_to_be_faster_it_is_not_imported(install: Install) -> None:
    install("raise SystemExit('imported')")
    known = {"matrix 20x32 BF16 (reference or zentorch)": ("reference",) * NUM_CHOICES}
    table = OpTable([REFERENCE], Rivals([loaded()], RivalChoices(known)))
    assert pack(table, matrix(20, 32)).provider == "reference"
    off = OpTable([REFERENCE], Rivals([loaded()], RivalChoices({}, measures=False)))
    assert pack(off, matrix(20, 32)).provider == "reference"


def test_other_operators_never_meet_its_weights(install: Install) -> None:
    install()
    table = OpTable([Slow()], Rivals([loaded()], RivalChoices({})))
    assert table.pack([matrix(20, 32)]).provider == "reference"
    assert pack(table, matrix(20, 32, torch.float16)).provider == "reference"
    mixed = (matrix(20, 32), matrix(4, 32, torch.float32))
    assert pack(table, *mixed).provider == "reference"
    weight = pack(table, matrix(20, 32))
    with pytest.raises(LookupError, match="zentorch: it multiplies matrices only"):
        table.bind(Embed(weight))


def test_steps_are_recorded_only_without_it(install: Install) -> None:
    pytest.importorskip("tokenmill._native", reason="the native module is not built")
    install()
    operators = choose_operators(ComputeConfig(measure=False), ONE)
    assert [p.name for p in operators.rivals.providers] == ["zentorch"]
    operators.table.bind(Linear(pack(operators.table, matrix(20, 32))))
    assert operators.recorder() is not None
    operators.table.bind(Linear(operators.rivals.providers[0].pack([matrix(20, 32)])))
    assert operators.recorder() is None


def test_packed_weights_stand_until_it_is_faster(install: Install) -> None:
    install()
    name = "matrix 20x32 BF16 (reference or zentorch)"
    weight = REFERENCE.pack([matrix(20, 32)])
    plain = OpTable([REFERENCE])
    assert plain.stands(weight)
    for known, stands in [
        ({}, False),  # to be measured
        ({name: ("reference",) * NUM_CHOICES}, True),
        ({name: ("zentorch",) * NUM_CHOICES}, False),
    ]:
        choices = RivalChoices(known)  # type: ignore[arg-type]
        assert OpTable([REFERENCE], Rivals([loaded()], choices)).stands(weight) is stands
        assert choices.used == ({name: "reference"} if stands else {})
    assert OpTable([REFERENCE], Rivals([loaded()], RivalChoices({}, measures=False))).stands(weight)
    other = REFERENCE.pack([matrix(20, 32, torch.float16)])
    assert OpTable([REFERENCE], Rivals([loaded()], RivalChoices({}))).stands(other)


@pytest.fixture(params=["stand-in", "real"])
def provider(request: pytest.FixtureRequest) -> ZentorchProvider:
    """zentorch, as far as there is one."""
    if request.param == "stand-in":
        request.getfixturevalue("install")()
    elif not REAL:
        pytest.skip("zentorch is not installed")
    return loaded()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm": torch.linspace(0.5, 2, 64), "eps": 1e-5},
    {"act": "silu"},
    {"bias": torch.linspace(-1, 1, 40), "softcap": 3.0},
    {"accumulate": True},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS)
def test_it_means_what_the_reference_means(
    provider: ZentorchProvider, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    segments: Sequence[RawTensor] = [matrix(24, 64, dtype, 1), matrix(16, 64, dtype, 2)]
    ours, theirs = provider.pack(segments), REFERENCE.pack(segments)
    assert (ours.out_features, ours.in_features, ours.formats) == (40, 64, theirs.formats)
    assert torch.equal(ours.dense(), theirs.dense())
    width = 128 if "act" in options else 64
    x = torch.randn(37, width, generator=torch.Generator().manual_seed(7))
    start, order = torch.ones(37, 40), torch.arange(36, -1, -1, dtype=torch.int32)
    for rest in ([], [order]):
        got = run(provider, Linear(ours, **options), x, start.clone(), *rest)
        want = run(REFERENCE, Linear(theirs, **options), x, start.clone(), *rest)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(got, want, atol=tolerance * float(want.abs().max()), rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_every_batch(provider: ZentorchProvider, dtype: torch.dtype) -> None:
    params = Linear(provider.pack([matrix(56, 96, dtype)]))
    x = torch.randn(50, 96, generator=torch.Generator().manual_seed(3))
    whole = run(provider, params, x, torch.empty(50, 56))
    for start, stop in [(0, 1), (0, 2), (5, 22), (16, 48), (49, 50)]:
        part = run(provider, params, x[start:stop].contiguous(), torch.empty(stop - start, 56))
        assert torch.equal(part, whole[start:stop])
    torch.testing.assert_close(run(provider, params, x, torch.empty(0, 56)), torch.empty(0, 56))


def test_a_model_runs_with_it(provider: ZentorchProvider) -> None:
    checkpoint = memory_checkpoint(llama())
    names = [f"matrix {n} F32 (reference or zentorch)" for n in ("120x72", "72x72", "240x72", "72x120")]
    known = dict.fromkeys(names, ("zentorch",) * NUM_CHOICES)
    table = OpTable([REFERENCE], Rivals([provider], RivalChoices(known)))
    ours, theirs = OurModel(checkpoint, table), OurModel(checkpoint, OpTable([REFERENCE]))
    assert {p for op, _, p in table.chosen if op == "linear"} == {"zentorch", "reference"}
    assert {p for op, _, p in table.chosen if op == "embed"} == {"reference"}
    tokens = list(range(3, 40))
    torch.testing.assert_close(ours.logits(tokens), theirs.logits(tokens), atol=2e-4, rtol=1e-4)


def test_unusable_weights_are_told(install: Install) -> None:
    install(REFUSING)
    with pytest.raises(ProviderFailed, match="no AVX-512 here"):
        loaded().pack([matrix(20, 32)])
