"""Real GGUF models read a real text as well as their dequantised fp32 selves do in transformers, and no
worse than llama.cpp does on the same file.

bench/perplexity.py says what is computed; tests/golden/perplexity.json holds llama.cpp's figures.
"""

from __future__ import annotations

import json
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

AS_GOOD = 1.001
"""llama.cpp's figure times this: its own sums differ from CPU to CPU in the fifth digit or so."""


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
    ours = perplexity.of_tokenmill(path, windows)
    assert ours == pytest.approx(perplexity.of_fp32(path, windows), rel=DISTANCE)
    assert ours <= AS_GOOD * golden["models"][name]["perplexity"]


def test_the_definition(perplexity: ModuleType) -> None:
    # Three tokens are predicted, each with a probability of a quarter.
    assert perplexity.perplexity(3 * 1.3862943611198906, [[1, 2, 3], [4, 5]]) == pytest.approx(4.0)
