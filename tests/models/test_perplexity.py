"""Real GGUF models read a real text as well as their dequantised fp32 selves do in transformers, and no
worse than llama.cpp does on the same file.

bench/perplexity.py says what is computed; tests/golden/perplexity.json holds llama.cpp's figures.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tokenmill.weights.sources import resolve

ROOT = Path(__file__).parents[2]

DISTANCE = 0.005
"""Of the fp32 model's perplexity."""


@pytest.fixture(scope="module")
def perplexity() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "bench"))
    yield import_module("perplexity")
    sys.path.remove(str(ROOT / "bench"))


@pytest.mark.model
@pytest.mark.parametrize("name", ["demo", "gemma3-270m", "qwen2.5-coder-0.5b"])
def test_real_models_read_well(name: str, perplexity: ModuleType) -> None:
    golden = json.loads((ROOT / "tests/golden/perplexity.json").read_text("utf-8"))
    assert (golden["text"], golden["window"]) == (perplexity.TEXT.name, perplexity.WINDOW)
    path = resolve(name)
    windows = perplexity.windows_of(path)
    assert sum(len(ids) - 1 for ids in windows) == golden["models"][name]["tokens"] > 2000
    ours = perplexity.perplexity(perplexity.of_tokenmill(path, windows))
    exact = perplexity.perplexity(perplexity.of_fp32(path, windows))
    assert ours == pytest.approx(exact, rel=DISTANCE)
    # A perplexity below the exact model's is luck, which nobody is held to.
    assert ours <= max(exact, golden["models"][name]["perplexity"])


def test_the_definition(perplexity: ModuleType) -> None:
    # Three tokens, each predicted with a probability of a quarter.
    assert perplexity.perplexity([math.log(4)] * 3) == pytest.approx(4.0)


def test_the_distance_and_its_error(perplexity: ModuleType) -> None:
    found = perplexity.Distance.of([1.0, 3.0, 2.0, 4.0], [1.0, 2.0, 2.0, 3.0])
    assert found.log_ratio == pytest.approx(0.5)
    assert found.error == pytest.approx(math.sqrt(1 / 3) / 2)
    with pytest.raises(ValueError, match="zip"):
        perplexity.Distance.of([1.0], [1.0, 2.0])
