from __future__ import annotations

from collections.abc import Collection

import torch

from tokenmill.benchmark.measure import shares
from tokenmill.benchmark.work import TokenWork, token_work
from tokenmill.hardware.ceilings import Ceilings
from tokenmill.weights.tensor import RawTensor

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
UP, NORM = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"


class Weights:
    """Tensors by name: format, shape and bytes."""

    def __init__(self, **tensors: tuple[str, tuple[int, ...], int]) -> None:
        self._tensors = tensors

    def names(self) -> Collection[str]:
        return self._tensors

    def get(self, name: str) -> RawTensor:
        kind, shape, size = self._tensors[name]
        return RawTensor(name, kind, shape, torch.zeros(size, dtype=torch.uint8))


def weights(head: bool, kind: str = "Q8_0", size: int = 34) -> Weights:
    tensors: dict[str, tuple[str, tuple[int, ...], int]] = {
        EMBED: ("F16", (4, 32), 256),
        UP: (kind, (1, 32), size),
        NORM: ("F32", (32,), 128),
    }
    if head:
        tensors[HEAD] = ("F16", (4, 32), 256)
    return Weights(**tensors)


def test_a_tied_embedding_is_read_as_output_matrix() -> None:
    assert token_work(weights(head=False), None) == TokenWork(256 + 34, 64, True)


def test_an_untied_embedding_is_not_read() -> None:
    assert token_work(weights(head=True), None) == TokenWork(256 + 34, 64, True)


def test_plain_weights() -> None:
    assert token_work(weights(False, "F16", 64), None) == TokenWork(256 + 64, 64, False)


def test_weights_quantised_at_load() -> None:
    work = token_work(weights(False, "F16", 64), "int4")
    assert work == TokenWork(128 * 34 / 32 + 32 * 20 / 32, 64, True)


def test_shares() -> None:
    ceilings = Ceilings(1000.0, 10.0, 100.0, "native", 0)
    result = {"prefill_tok_s": 2.0, "runs": [{"concurrency": 1, "decode_tok_s": 5.0}]}
    assert shares(result, TokenWork(100, 10, True), ceilings) == {
        "decode_read": 0.5,
        "prefill_int8": 0.2,
        "prefill_fp32": None,
    }
    assert shares(result, TokenWork(100, 1, False), ceilings)["prefill_fp32"] == 0.2
    result["runs"] = [{"concurrency": 4, "decode_tok_s": 5.0}]
    assert shares(result, TokenWork(100, 1, False), ceilings)["decode_read"] is None
    unknown = Ceilings(1000.0, 10.0, None, "torch", 0)
    assert shares(result, TokenWork(100, 10, True), unknown)["prefill_int8"] is None
