"""Inputs for comparing native operators with their reference: checkpoint blocks, caches, steps."""

from __future__ import annotations

import torch

from tokenmill.cache.spec import BLOCK_SIZE, FullAttentionSpec
from tokenmill.engine.step import LayerCache, StepBuffers
from tokenmill.weights.tensor import RawTensor

# name -> (columns of a block, bytes of a block, where its fp16 scales lie)
BLOCKS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "Q4_0": (32, 18, (0,)),
    "Q4_1": (32, 20, (0, 2)),
    "Q5_0": (32, 22, (0,)),
    "Q5_1": (32, 24, (0, 2)),
    "Q8_0": (32, 34, (0,)),
    "Q2_K": (256, 84, (80, 82)),
    "Q3_K": (256, 110, (108,)),
    "Q4_K": (256, 144, (0, 2)),
    "Q5_K": (256, 176, (0, 2)),
    "Q6_K": (256, 210, (208,)),
    "IQ4_NL": (32, 18, (0,)),
    "IQ4_XS": (256, 136, (0,)),
}
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def random_matrix(fmt: str, rows: int, cols: int, gen: torch.Generator) -> RawTensor:
    """A matrix of any bytes that the format allows, with scales of a sensible size."""
    if fmt in PLAIN:
        values = torch.randn(rows, cols, generator=gen).to(PLAIN[fmt])
        return RawTensor(f"random.{fmt}", fmt, (rows, cols), values.view(-1).view(torch.uint8))
    block, size, scales = BLOCKS[fmt]
    data = torch.randint(0, 256, (rows * cols // block, size), generator=gen, dtype=torch.uint8)
    for at in scales:
        half = (torch.rand(data.shape[0], generator=gen) * 0.02 - 0.004).to(torch.float16)
        data[:, at : at + 2] = half.view(torch.uint8).view(-1, 2)
    return RawTensor(f"random.{fmt}", fmt, (rows, cols), data.reshape(-1))


def count(n: int) -> torch.Tensor:
    """How many rows are in use, as operators take it."""
    return torch.tensor([n], dtype=torch.int32)


def make_step(
    requests: list[tuple[int, int]], blocks: torch.Tensor, max_blocks: int, spare: int = 3
) -> StepBuffers:
    """A step of requests (tokens already cached, tokens now), block numbers from ``blocks``."""
    total = sum(now for _, now in requests)
    step = StepBuffers.allocate(
        max_tokens=total + spare,
        max_reqs=len(requests) + 1,
        max_logits=total + spare,
        max_blocks=max_blocks,
        num_groups=1,
    )
    step.num_tokens[0], step.num_reqs[0] = total, len(requests)
    at = used = 0
    for r, (cached, now) in enumerate(requests):
        step.positions[at : at + now] = torch.arange(cached, cached + now, dtype=torch.int32)
        step.token_req[at : at + now] = r
        needed = (cached + now + BLOCK_SIZE - 1) // BLOCK_SIZE
        step.block_tables[0][r, :needed] = blocks[used : used + needed]
        at, used = at + now, used + needed
        step.query_start[r + 1] = at
    return step


def make_cache(
    step: StepBuffers,
    num_blocks: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    window: int = 0,
) -> LayerCache:
    """A pool of NaN, so that whatever was not stored shows when it is read."""
    spec = FullAttentionSpec(kv_heads, head_dim, dtype)
    pad = 64
    pool = torch.full((num_blocks * (spec.page_bytes + pad),), 0xFF, dtype=torch.uint8)
    return LayerCache(
        pool=pool,
        block_bytes=spec.page_bytes + pad,
        offset=pad,
        block_table=step.block_tables[0],
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        window=window,
    )
