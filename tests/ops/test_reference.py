"""The reference operators: their meaning, and that a row's bits depend on that row alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tokenmill.cache.spec import FullAttentionSpec
from tokenmill.engine.step import LayerCache, StepBuffers
from tokenmill.ops import reference
from tokenmill.ops.reference import ReferenceProvider
from tokenmill.ops.table import Attention, Embed, Linear, OpTable, RmsNorm, RopeStore, RopeTable, Weight
from tokenmill.weights.tensor import RawTensor


def raw(values: Tensor, fmt: str = "F32") -> RawTensor:
    dtype = reference.PLAIN_FORMATS[fmt]
    return RawTensor(
        "w", fmt, tuple(values.shape), values.to(dtype).contiguous().view(torch.uint8).flatten()
    )


def q8_0(rows: int, width: int) -> RawTensor:
    scales = (torch.rand(rows * width // 32, 1) * 0.1).half().view(torch.uint8)
    q = torch.randint(-127, 128, (rows * width // 32, 32), dtype=torch.int8).view(torch.uint8)
    return RawTensor("q", "Q8_0", (rows, width), torch.cat([scales, q], dim=1).flatten())


def count(n: int) -> Tensor:
    return torch.tensor([n], dtype=torch.int32)


@pytest.fixture
def ops() -> OpTable:
    torch.manual_seed(0)
    return OpTable([ReferenceProvider()])


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


# What the operators mean


def test_linear_with_everything(ops: OpTable) -> None:
    w, norm, bias = torch.randn(7, 8), torch.rand(16), torch.randn(7)
    x, out = torch.randn(3, 16), torch.randn(3, 7)
    before = out.clone()
    run = ops.bind(
        Linear(
            ops.pack([raw(w)]), norm=norm, eps=1e-5, act="silu", bias=bias, softcap=2.0, accumulate=True
        )
    )
    run(count(2), x, out)
    y = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm
    y = functional.silu(y[:, :8]) * y[:, 8:] @ w.T + bias
    torch.testing.assert_close(out[:2], (before + 2 * torch.tanh(y / 2))[:2])
    assert torch.equal(out[2], before[2])


@pytest.mark.parametrize(
    ("act", "function"),
    [
        ("gelu", functional.gelu),
        ("gelu_tanh", lambda t: functional.gelu(t, approximate="tanh")),
    ],
)
def test_linear_activations(ops: OpTable, act, function) -> None:
    w, x, out = torch.randn(5, 8), torch.randn(2, 16), torch.zeros(2, 5)
    ops.bind(Linear(ops.pack([raw(w)]), act=act))(count(2), x, out)
    torch.testing.assert_close(out, function(x[:, :8]) * x[:, 8:] @ w.T)


def test_linear_takes_rows_by_index(ops: OpTable) -> None:
    w, x, out = torch.randn(5, 8), torch.randn(6, 8), torch.zeros(4, 5)
    rows = torch.tensor([4, 1, 0, 0], dtype=torch.int32)
    ops.bind(Linear(ops.pack([raw(w)])))(count(2), x, out, rows)
    torch.testing.assert_close(out[:2], x[[4, 1]] @ w.T)
    assert not out[2:].any()


def test_linear_without_rows_writes_nothing(ops: OpTable) -> None:
    out = torch.full((4, 5), 7.0)
    ops.bind(Linear(ops.pack([raw(torch.randn(5, 8))])))(count(0), torch.randn(4, 8), out)
    assert torch.equal(out, torch.full((4, 5), 7.0))


@pytest.mark.parametrize("fmt", ["F16", "BF16"])
def test_16_bit_weights_multiply_in_fp32(ops: OpTable, fmt: str) -> None:
    w, x, out = torch.randn(5, 8), torch.randn(2, 8), torch.zeros(2, 5)
    weight = ops.pack([raw(w, fmt)])
    ops.bind(Linear(weight))(count(2), x, out)
    torch.testing.assert_close(out, x @ w.to(reference.PLAIN_FORMATS[fmt]).float().T)
    assert weight.nbytes == 2 * 40
    assert weight.dense().dtype == torch.float32


def test_only_quantised_segments_see_quantised_activations(ops: OpTable) -> None:
    plain, quantised = raw(torch.randn(3, 64)), q8_0(4, 64)
    weight = ops.pack([plain, quantised])
    assert (weight.out_features, weight.in_features, weight.formats) == (7, 64, ("F32", "Q8_0"))
    x, out = torch.randn(2, 64), torch.zeros(2, 7)
    ops.bind(Linear(weight))(count(2), x, out)
    rounded = reference.dequantise_activations(*reference.quantise_activations(x))
    dense = weight.dense()
    torch.testing.assert_close(out[:, :3], x @ dense[:3].T)
    torch.testing.assert_close(out[:, 3:], rounded @ dense[3:].T)
    assert not torch.equal(rounded, x)


def test_activation_quantisation_rounds_half_to_even() -> None:
    x = torch.zeros(1, 64)
    x[0, :6] = torch.tensor([127.0, 0.5, 1.5, 2.5, -2.5, -127.0])
    q, scale = reference.quantise_activations(x)
    assert q[0, :6].tolist() == [127, 0, 2, 2, -2, -127]
    assert scale.tolist() == [[1.0, 0.0]]
    assert not q[0, 32:].any()


def test_vanishing_activations_become_zeros() -> None:
    x = torch.full((1, 32), 1e-45)
    q, scale = reference.quantise_activations(x)
    assert not q.any()
    assert scale.item() == 0


def test_embed_scales(ops: OpTable) -> None:
    w, out = torch.randn(9, 4), torch.zeros(3, 4)
    ids = torch.tensor([8, 0, 5], dtype=torch.int32)
    ops.bind(Embed(ops.pack([raw(w, "BF16")]), scale=2.0))(count(2), ids, out)
    assert torch.equal(out[:2], w.bfloat16().float()[[8, 0]] * 2)
    assert not out[2].any()


def test_embed_from_mixed_segments(ops: OpTable) -> None:
    weight = ops.pack([raw(torch.randn(2, 32)), q8_0(3, 32)])
    out = torch.zeros(2, 32)
    ops.bind(Embed(weight))(count(2), torch.tensor([1, 4], dtype=torch.int32), out)
    assert torch.equal(out, weight.dense()[[1, 4]])


def test_rms_norm_accumulates(ops: OpTable) -> None:
    x, w, out = torch.randn(2, 8), torch.randn(8), torch.ones(2, 8)
    ops.bind(RmsNorm(w, 1e-6, accumulate=True))(count(1), x, out)
    torch.testing.assert_close(out[0], 1 + functional.rms_norm(x, (8,), w, 1e-6)[0])
    assert torch.equal(out[1], torch.ones(8))


def test_rope_table(ops: OpTable) -> None:
    inv_freq, out = torch.tensor([1.0, 0.1]), torch.zeros(3, 4)
    ops.bind(RopeTable(inv_freq, scale=2.0))(count(2), torch.tensor([0, 7, 0], dtype=torch.int32), out)
    angles = torch.tensor([[0.0], [7.0]]) * inv_freq
    torch.testing.assert_close(out[:2], 2 * torch.cat([angles.cos(), angles.sin()], dim=1))


def test_weights_of_others_are_refused(ops: OpTable) -> None:
    class Foreign:
        provider, formats, out_features, in_features, nbytes = "other", ("F32",), 1, 1, 4

        def dense(self) -> Tensor:
            return torch.zeros(1, 1)

    foreign: Weight = Foreign()
    with pytest.raises(LookupError, match="packed for other"):
        ops.bind(Linear(foreign))


def test_segments_of_different_width_are_refused(ops: OpTable) -> None:
    with pytest.raises(LookupError, match="differ in width"):
        ops.pack([raw(torch.randn(2, 4)), raw(torch.randn(2, 6))])
    with pytest.raises(LookupError, match="matrices only"):
        ops.pack([raw(torch.randn(4))])


# A row's bits depend on that row alone


@pytest.mark.parametrize(
    ("width", "features", "quantised"),
    [
        (64, 192, False),
        (576, 1537, False),
        (576, 1536, True),
        (1000, 77, False),
        (4864, 1, False),
    ],
)
def test_a_row_is_independent_of_the_batch(
    ops: OpTable, threads: int, width: int, features: int, quantised: bool
) -> None:
    weight = ops.pack([q8_0(features, width) if quantised else raw(torch.randn(features, width))])
    run = ops.bind(Linear(weight, norm=torch.rand(2 * width), eps=1e-5, act="silu", softcap=30.0))
    row = torch.randn(2 * width)
    alone = torch.zeros(1, features)
    run(count(1), row[None], alone)
    for rows, place in [(2, 1), (7, 3), (16, 15), (17, 16), (40, 29)]:
        x, out = torch.randn(rows, 2 * width) * 100, torch.zeros(rows, features)
        x[place] = row
        run(count(rows), x, out)
        assert torch.equal(out[place], alone[0])


# Shapes that one matrix multiplication of the BLAS library would split differently among threads.
@pytest.mark.parametrize(
    ("width", "features"),
    [(576, 1537), (896, 576), (1536, 16), (2048, 100), (4864, 1), (256, 33), (256, 100), (300, 130)],
)
def test_a_row_is_independent_of_the_thread_count(ops: OpTable, width: int, features: int) -> None:
    weight = ops.pack([raw(torch.randn(features, width))])
    run = ops.bind(Linear(weight, norm=torch.rand(width), eps=1e-5, softcap=30.0))
    x = torch.randn(20, width)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3, 4, 5, 8):
        torch.set_num_threads(threads)
        out = torch.zeros(20, features)
        run(count(20), x, out)
        results.append(out)
    torch.set_num_threads(before)
    assert all(torch.equal(out, results[0]) for out in results)


@pytest.mark.parametrize("tokens", [100, 1000, 2047])
def test_values_are_mixed_independently_of_the_thread_count(tokens: int) -> None:
    weights = torch.softmax(torch.randn(1, 4, tokens), dim=-1)
    values = torch.randn(1, tokens, 256)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3, 4):
        torch.set_num_threads(threads)
        results.append(reference.mix_values(weights, values))
    torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], torch.bmm(weights, values))


# The paged cache


def step_of(requests: list[tuple[list[int], range]], blocks: int, capacity: int = 64) -> StepBuffers:
    """A step of requests, each a block table and the positions that it computes."""
    step = StepBuffers.allocate(
        max_tokens=capacity, max_reqs=4, max_logits=4, max_blocks=blocks, num_groups=1
    )
    at = 0
    for index, (table, positions) in enumerate(requests):
        n = len(positions)
        step.positions[at : at + n] = torch.tensor(positions, dtype=torch.int32)
        step.token_req[at : at + n] = index
        step.query_start[index] = at
        step.block_tables[0][index, : len(table)] = torch.tensor(table, dtype=torch.int32)
        at += n
    step.query_start[len(requests)] = at
    step.num_tokens[0], step.num_reqs[0] = at, len(requests)
    return step


HEADS, KV_HEADS, HEAD_DIM = 6, 2, 12
WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM


def cache_of(table: Tensor, window: int, dtype: torch.dtype = torch.float32) -> LayerCache:
    """Pages that begin as NaN, after another layer's page in each block."""
    page = FullAttentionSpec(KV_HEADS, HEAD_DIM, dtype).page_bytes
    pool = torch.full((8 * 2 * page,), 0xFF, dtype=torch.uint8)
    return LayerCache(pool, 2 * page, page, table, KV_HEADS, HEAD_DIM, dtype, window)


def attend(
    ops: OpTable, step: StepBuffers, qkv: Tensor, cache: LayerCache, softcap: float = 0.0
) -> Tensor:
    store = ops.bind(RopeStore(HEADS, KV_HEADS, HEAD_DIM, 8, cache.dtype))
    run = ops.bind(
        Attention(HEADS, KV_HEADS, HEAD_DIM, 0.3, cache.dtype, softcap=softcap, window=cache.window)
    )
    rope, out = torch.zeros(64, 8), torch.full((64, HEADS * HEAD_DIM), 5.0)
    n = int(step.num_tokens)
    ops.bind(RopeTable(torch.tensor([1.0, 0.5, 0.1, 0.01])))(step.num_tokens, step.positions, rope)
    buffer = torch.full((64, WIDTH), torch.nan)
    buffer[:n] = qkv
    store(step, rope, buffer, cache)
    run(step, buffer, cache, out)
    assert torch.equal(out[n:], torch.full_like(out[n:], 5.0))
    return out[:n]


def dense_attention(qkv: Tensor, window: int, softcap: float) -> Tensor:
    n = len(qkv)
    q, k, v = qkv.view(n, -1, HEAD_DIM).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    angles = torch.arange(n)[:, None] * torch.tensor([1.0, 0.5, 0.1, 0.01])
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]

    def rotate(t: Tensor) -> Tensor:
        a, b, rest = t[..., :4], t[..., 4:8], t[..., 8:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)

    k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (rotate(k), v))
    scores = torch.einsum("qhd,khd->hqk", rotate(q), k) * 0.3
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(n)[:, None] - torch.arange(n)[None]
    hidden = (distance < 0) | (distance >= (window or n))
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


@pytest.mark.parametrize("window", [0, 1, 5, 16, 20])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_attention_means_dense_attention(ops: OpTable, window: int, softcap: float) -> None:
    qkv = torch.randn(37, WIDTH)
    step = step_of([([5, 2, 7], range(37))], blocks=4)
    cache = cache_of(step.block_tables[0], window)
    out = attend(ops, step, qkv, cache, softcap)
    torch.testing.assert_close(out, dense_attention(qkv, window, softcap), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [0, 5, 20])
def test_attention_is_independent_of_chunks_and_neighbours(
    ops: OpTable, threads: int, window: int
) -> None:
    qkv, other = torch.randn(37, WIDTH), torch.randn(20, WIDTH)
    step = step_of([([5, 2, 7], range(37))], blocks=4)
    alone = attend(ops, step, qkv, cache_of(step.block_tables[0], window))

    cache = cache_of(step.block_tables[0], window)
    pieces = []
    for start, stop in [(0, 3), (3, 16), (16, 17), (17, 37)]:
        requests = [([1, 3], range(20)), ([0, 6, 4], range(start, stop))]
        step = step_of(requests, blocks=4)
        moved = LayerCache(**{**cache.__dict__, "block_table": step.block_tables[0]})
        out = attend(ops, step, torch.cat([other, qkv[start:stop]]), moved)
        pieces.append(out[20:])
    assert torch.equal(torch.cat(pieces), alone)


def test_attention_never_reads_a_block_left_behind(ops: OpTable) -> None:
    qkv = torch.randn(37, WIDTH)
    step = step_of([([5, 2, 7], range(36))], blocks=4)
    cache = cache_of(step.block_tables[0], 4)
    attend(ops, step, qkv[:36], cache)
    step = step_of([([-1, -1, 7], range(36, 37))], blocks=4)
    moved = LayerCache(**{**cache.__dict__, "block_table": step.block_tables[0]})
    out = attend(ops, step, qkv[36:], moved)
    torch.testing.assert_close(out[0], dense_attention(qkv, 4, 0)[36], rtol=1e-5, atol=1e-5)


def test_rope_store_normalises_heads_and_rounds_to_the_cache_dtype(ops: OpTable) -> None:
    q_norm, k_norm = torch.rand(HEAD_DIM), torch.rand(HEAD_DIM)
    step = step_of([([3], range(2, 3))], blocks=4)
    cache = cache_of(step.block_tables[0], 0, torch.bfloat16)
    qkv = torch.randn(64, WIDTH)
    before = qkv[0].clone().view(-1, HEAD_DIM)
    rope = torch.zeros(64, 8)
    rope[0, :4] = 1  # no rotation
    ops.bind(
        RopeStore(HEADS, KV_HEADS, HEAD_DIM, 8, torch.bfloat16, q_norm=q_norm, k_norm=k_norm, eps=1e-6)
    )(step, rope, qkv, cache)
    q = functional.rms_norm(before[:HEADS], (HEAD_DIM,), q_norm, 1e-6)
    k = functional.rms_norm(before[HEADS : HEADS + KV_HEADS], (HEAD_DIM,), k_norm, 1e-6)
    torch.testing.assert_close(qkv[0, : HEADS * HEAD_DIM], q.flatten())
    start = 3 * cache.block_bytes + cache.offset
    page = cache.pool[start : start + cache.block_bytes // 2].view(torch.bfloat16)
    keys, values = page.view(2, -1)
    torch.testing.assert_close(
        keys.view(KV_HEADS, HEAD_DIM, 16)[:, :, 2].float(), k, rtol=1e-2, atol=1e-2
    )
    expected = before[HEADS + KV_HEADS :].bfloat16()
    assert torch.equal(values.view(KV_HEADS, 16, HEAD_DIM)[:, 2], expected)
    assert values.view(KV_HEADS, 16, HEAD_DIM)[:, 3].isnan().all()
