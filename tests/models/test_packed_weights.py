"""Weights that were packed at an earlier start give the bits of weights that are packed now."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.harness import MemoryCheckpoint, saved
from tests.models.test_llama import llama
from tokenmill.config import LoadConfig
from tokenmill.models.loader import WeightLoader
from tokenmill.models.packed_weights import PackedWeights, open_packed_weights
from tokenmill.ops.native import NativeProvider, NativeWeight, load_provider
from tokenmill.ops.reference import ReferenceProvider
from tokenmill.ops.table import Linear, OpTable, Weight
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.packed_cache import PackedCache
from tokenmill.weights.packed_directory import packed_entries

pytest.importorskip("tokenmill._native", reason="the native module is not built")

QKV = tuple(f"model.layers.1.self_attn.{x}_proj.weight" for x in "qkv")
DOWN = "model.layers.1.mlp.down_proj.weight"
EMBEDDING = "model.embed_tokens.weight"
SIZES = {"hidden_size": 96, "intermediate_size": 160}


@pytest.fixture(scope="module")
def provider() -> NativeProvider:
    found, reason = load_provider(2)
    assert found is not None, reason
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return saved(llama(**SIZES), tmp_path_factory.mktemp("model"))


@pytest.fixture
def cache(tmp_path: Path) -> PackedCache:
    return PackedCache(tmp_path / "packed", 1 << 30, smallest_bytes=0)


def opened(
    cache: PackedCache, checkpoint: Checkpoint, provider: NativeProvider, load: LoadConfig
) -> PackedWeights:
    packed = open_packed_weights(cache, checkpoint, load, provider)
    assert packed is not None
    return packed


def load_all(
    packed: PackedWeights | None, checkpoint: Checkpoint, provider: NativeProvider, load: LoadConfig
) -> list[Weight]:
    loader = WeightLoader(checkpoint, OpTable([provider]), load, packed=packed)
    return [loader.linear(*QKV), loader.linear(DOWN), loader.linear(EMBEDDING, precise=True)]


def keep(packed: PackedWeights) -> bool:
    """Waits for the file; False if there was nothing to write."""
    thread = packed.keep()
    if thread is not None:
        thread.join()
    return thread is not None


def products(provider: NativeProvider, weight: Weight) -> torch.Tensor:
    """What the matrix makes of seven rows."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(7, weight.in_features, generator=generator)
    out = torch.empty(7, weight.out_features)
    provider.bind(Linear(weight))(torch.tensor([7], dtype=torch.int32), x, out)
    return out


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_mapped_weights_are_the_packed_ones(
    cache: PackedCache, checkpoint: Checkpoint, provider: NativeProvider, quantization: str | None
) -> None:
    load = LoadConfig("test", quantization=quantization)  # type: ignore[arg-type]
    plain = load_all(None, checkpoint, provider, load)
    first = opened(cache, checkpoint, provider, load)
    load_all(first, checkpoint, provider, load)
    assert first.describe().startswith("0 of 3 matrices")
    assert keep(first)
    second = opened(cache, checkpoint, provider, load)
    mapped = load_all(second, checkpoint, provider, load)
    assert second.describe().startswith("3 of 3 matrices")
    assert not keep(second)
    del first, second  # the matrices alone keep the mapping
    for ours, theirs in zip(mapped, plain, strict=True):
        assert isinstance(ours, NativeWeight)
        assert (ours.formats, ours.nbytes) == (theirs.formats, theirs.nbytes)
        assert torch.equal(ours.dense(), theirs.dense())
        assert torch.equal(products(provider, ours), products(provider, theirs))


def test_what_is_missing_is_packed_and_kept(
    cache: PackedCache, checkpoint: Checkpoint, provider: NativeProvider
) -> None:
    load = LoadConfig("test")
    first = opened(cache, checkpoint, provider, load)
    WeightLoader(checkpoint, OpTable([provider]), load, packed=first).linear(DOWN)
    assert keep(first)
    second = opened(cache, checkpoint, provider, load)
    load_all(second, checkpoint, provider, load)
    assert second.describe().startswith("1 of 3 matrices")
    assert keep(second)
    third = opened(cache, checkpoint, provider, load)
    load_all(third, checkpoint, provider, load)
    assert third.describe().startswith("3 of 3 matrices")


def test_how_weights_are_loaded_belongs_to_the_key(
    cache: PackedCache,
    checkpoint: Checkpoint,
    provider: NativeProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads = [LoadConfig("test"), LoadConfig("test", "bfloat16"), LoadConfig("test", "auto", "int8")]
    for load in loads:
        packed = opened(cache, checkpoint, provider, load)
        load_all(packed, checkpoint, provider, load)
        assert packed.describe().startswith("0 of 3")
        keep(packed)
    assert len(packed_entries(cache.directory)) == 3
    monkeypatch.setattr(NativeProvider, "layout", lambda _: "another")
    packed = opened(cache, checkpoint, provider, loads[0])
    load_all(packed, checkpoint, provider, loads[0])
    assert packed.describe().startswith("0 of 3")


def test_the_layout_is_a_digest_of_what_packing_does(provider: NativeProvider) -> None:
    again, _ = load_provider(1)
    assert again is not None
    assert again.layout() == provider.layout()


def test_weights_of_other_providers_are_not_kept(
    cache: PackedCache, checkpoint: Checkpoint, provider: NativeProvider
) -> None:
    load = LoadConfig("test")
    packed = opened(cache, checkpoint, provider, load)
    weights = WeightLoader(checkpoint, OpTable([ReferenceProvider()]), load, packed=packed)
    weights.linear(DOWN)
    assert not keep(packed)


def test_tiles_of_another_size_are_packed_anew(
    cache: PackedCache, checkpoint: Checkpoint, provider: NativeProvider
) -> None:
    load = LoadConfig("test")
    first = opened(cache, checkpoint, provider, load)
    weight = load_all(first, checkpoint, provider, load)[1]
    keep(first)
    second = opened(cache, checkpoint, provider, load)
    found = cache.read(*_where(second))
    wrong = {name: type(m)(m.segments, m.in_features * 2, m.data, m.owner) for name, m in found.items()}
    cache.write(*_where(second), wrong)
    third = opened(cache, checkpoint, provider, load)
    assert torch.equal(load_all(third, checkpoint, provider, load)[1].dense(), weight.dense())
    assert third.describe().startswith("0 of 3")


def _where(packed: PackedWeights) -> tuple[str, str]:
    return packed.model, packed.key


def test_a_checkpoint_without_files_has_no_packed_weights(
    cache: PackedCache, provider: NativeProvider, tmp_path: Path
) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        checkpoint = MemoryCheckpoint({}, {}, path=path)
        assert open_packed_weights(cache, checkpoint, LoadConfig("test"), provider) is None
