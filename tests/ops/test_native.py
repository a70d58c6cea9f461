"""Every native operator against its plain-torch reference, over generated shapes and awkward values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ops.native_cases import BLOCKS, PLAIN, count, make_cache, make_step, random_matrix
from tokenmill.engine.step import StepBuffers
from tokenmill.ops.native import NativeProvider, load_provider
from tokenmill.ops.reference import ReferenceProvider
from tokenmill.ops.table import (
    Attention,
    Embed,
    LayerNorm,
    Linear,
    OpParams,
    RmsNorm,
    RopeStore,
    RopeTable,
)
from tokenmill.weights.ggml_formats import dequantize
from tokenmill.weights.tensor import RawTensor

native = pytest.importorskip("tokenmill._native", reason="the native module was not built")

REFERENCE = ReferenceProvider()
FORMATS = [*PLAIN, *BLOCKS]
VARIANTS = native.available_kernels()
few = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
seeds = st.integers(0, 2**31 - 1)


@pytest.fixture(scope="module", params=VARIANTS)
def provider(request: pytest.FixtureRequest) -> NativeProvider:
    loaded, reason = load_provider(2, kernels=request.param)
    assert loaded is not None, reason
    return loaded


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 2e-5) -> None:
    """Equal within ``tolerance`` of the largest value, and equally finite."""
    assert torch.equal(torch.isfinite(got), torch.isfinite(want))
    finite = torch.isfinite(want)
    scale = want[finite].abs().max().item() if finite.any() else 0.0
    assert torch.allclose(got[finite], want[finite], rtol=0, atol=tolerance * max(scale, 1.0))


def both_linear(
    provider: NativeProvider, segments: list[RawTensor], **options: object
) -> tuple[Callable[..., None], Callable[..., None]]:
    return (
        provider.bind(Linear(provider.pack(segments), **options)),  # type: ignore[arg-type]
        REFERENCE.bind(Linear(REFERENCE.pack(segments), **options)),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("fmt", FORMATS)
@few
@given(rows=st.integers(1, 40), seed=seeds)
def test_packing_is_exact(provider: NativeProvider, fmt: str, rows: int, seed: int) -> None:
    raw = random_matrix(fmt, rows, 512, generator(seed))
    assert torch.equal(provider.pack([raw]).dense(), dequantize(raw))


@pytest.mark.parametrize("fmt", FORMATS)
@few
@given(rows=st.integers(1, 70), blocks=st.integers(1, 3), tokens=st.integers(0, 19), seed=seeds)
def test_linear(
    provider: NativeProvider, fmt: str, rows: int, blocks: int, tokens: int, seed: int
) -> None:
    gen = generator(seed)
    cols = blocks * (BLOCKS[fmt][0] if fmt in BLOCKS else 24 + seed % 9)
    fast, slow = both_linear(provider, [random_matrix(fmt, rows, cols, gen)])
    x = torch.randn(tokens + 2, cols, generator=gen)
    got, want = torch.full((tokens + 2, rows), 7.0), torch.full((tokens + 2, rows), 7.0)
    fast(count(tokens), x, got)
    slow(count(tokens), x, want)
    close(got, want)
    assert (got[tokens:] == 7.0).all(), "rows beyond the count were written"


@few
@given(
    tokens=st.integers(1, 13),
    act=st.sampled_from([None, "silu", "gelu", "gelu_tanh", "relu", "relu2"]),
    gated=st.booleans(),
    centre=st.booleans(),
    scale=st.sampled_from([1.0, 0.3]),
    bias=st.booleans(),
    softcap=st.sampled_from([0.0, 4.0]),
    accumulate=st.booleans(),
    formats=st.lists(
        st.sampled_from(["F32", "BF16", "Q4_K", "Q6_K", "Q8_0", "Q5_0"]), min_size=1, max_size=3
    ),
    seed=seeds,
)
def test_linear_options_and_mixed_segments(
    provider: NativeProvider,
    tokens: int,
    act: str | None,
    gated: bool,
    centre: bool,
    scale: float,
    bias: bool,
    softcap: float,
    accumulate: bool,
    formats: list[str],
    seed: int,
) -> None:
    gen = generator(seed)
    cols = 256
    segments = [random_matrix(f, 5 + 17 * i, cols, gen) for i, f in enumerate(formats)]
    rows = sum(s.shape[0] for s in segments)
    fast, slow = both_linear(
        provider,
        segments,
        norm=None if act else torch.randn(cols, generator=gen),
        norm_bias=torch.randn(cols, generator=gen) if centre and bias and not act else None,
        centre=centre,
        eps=1e-6,
        act=act,
        gated=gated,
        scale=scale,
        bias=torch.randn(rows, generator=gen) if bias else None,
        softcap=softcap,
        accumulate=accumulate,
    )
    x = torch.randn(tokens, cols * (2 if act and gated else 1), generator=gen)
    start = torch.randn(tokens, rows, generator=gen)
    got, want = start.clone(), start.clone()
    fast(count(tokens), x, got)
    slow(count(tokens), x, want)
    # An activation computed to another last bit may round to another int8 step: one step of one group.
    close(got, want, 2e-5 if all(f in PLAIN for f in formats) else 2e-3)


@few
@given(picks=st.lists(st.integers(0, 8), min_size=1, max_size=6), seed=seeds)
def test_linear_gathers_rows(provider: NativeProvider, picks: list[int], seed: int) -> None:
    gen = generator(seed)
    fast, slow = both_linear(
        provider, [random_matrix("Q8_0", 33, 64, gen)], norm=torch.randn(64, generator=gen), eps=1e-5
    )
    x = torch.randn(9, 64, generator=gen)
    index = torch.tensor(picks, dtype=torch.int32)
    got, want = torch.zeros(len(picks), 33), torch.zeros(len(picks), 33)
    fast(count(len(picks)), x, got, index)
    slow(count(len(picks)), x, want, index)
    close(got, want, 2e-3)


@pytest.mark.parametrize("fmt", ["F32", "Q4_1", "Q8_0", "Q6_K"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_stays_so_and_stays_alone(
    provider: NativeProvider, fmt: str, value: float
) -> None:
    gen = generator(3)
    linear = provider.bind(Linear(provider.pack([random_matrix(fmt, 20, 256, gen)])))
    x = torch.randn(5, 256, generator=gen)
    clean, dirty = torch.zeros(5, 20), torch.zeros(5, 20)
    linear(count(5), x, clean)
    x[2, 100] = value
    linear(count(5), x, dirty)
    assert not torch.isfinite(dirty[2]).any()
    keep = torch.tensor([0, 1, 3, 4])
    assert torch.equal(dirty[keep], clean[keep])


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-38, 1e-20, 1e20, 1e36])
def test_linear_at_extreme_sizes(provider: NativeProvider, scale: float) -> None:
    gen = generator(4)
    fast, slow = both_linear(provider, [random_matrix("Q4_1", 18, 96, gen)])
    x = torch.randn(3, 96, generator=gen) * scale
    got, want = torch.zeros(3, 18), torch.zeros(3, 18)
    fast(count(3), x, got)
    slow(count(3), x, want)
    # the last term: scale times weight is subnormal here, where fp32 has few digits left
    assert torch.allclose(got, want, rtol=1e-4, atol=want.abs().max().item() * 1e-5 + 1e-41)


@few
@given(width=st.integers(1, 100), tokens=st.integers(0, 9), accumulate=st.booleans(), seed=seeds)
def test_rms_norm(
    provider: NativeProvider, width: int, tokens: int, accumulate: bool, seed: int
) -> None:
    gen = generator(seed)
    params = RmsNorm(torch.randn(width, generator=gen), 1e-5, accumulate)
    x, start = (
        torch.randn(tokens + 1, width, generator=gen),
        torch.randn(tokens + 1, width, generator=gen),
    )
    got, want = start.clone(), start.clone()
    provider.bind(params)(count(tokens), x, got)
    REFERENCE.bind(params)(count(tokens), x, want)
    close(got, want)


@few
@given(
    width=st.integers(1, 100),
    tokens=st.integers(0, 9),
    bias=st.booleans(),
    accumulate=st.booleans(),
    seed=seeds,
)
def test_layer_norm(
    provider: NativeProvider, width: int, tokens: int, bias: bool, accumulate: bool, seed: int
) -> None:
    gen = generator(seed)
    weight, offset = torch.randn(2, width, generator=gen)
    params = LayerNorm(weight, 1e-2, offset if bias else None, accumulate)
    # Far from zero, so that an average taken the wrong way would show.
    x = torch.randn(tokens + 1, width, generator=gen) + 7
    start = torch.randn(tokens + 1, width, generator=gen)
    got, want = start.clone(), start.clone()
    provider.bind(params)(count(tokens), x, got)
    REFERENCE.bind(params)(count(tokens), x, want)
    close(got, want, 2e-4)
    assert torch.equal(got[tokens:], start[tokens:])
    if not accumulate:
        in_place = x.clone()
        provider.bind(params)(count(tokens), in_place, in_place)
        assert torch.equal(in_place[:tokens], got[:tokens])


def test_embeddings_can_be_added(provider: NativeProvider) -> None:
    raw = random_matrix("F32", 20, 24, generator(1))
    ids, start = torch.tensor([3, 19, 0], dtype=torch.int32), torch.randn(3, 24)
    got, want = start.clone(), start.clone()
    for p, out in ((provider, got), (REFERENCE, want)):
        p.bind(Embed(p.pack([raw]), 0.5, accumulate=True))(count(2), ids, out)
    assert torch.equal(got, want)
    assert not torch.equal(got[:2], start[:2])
    assert torch.equal(got[2], start[2])


@pytest.mark.parametrize("fmt", FORMATS)
def test_embed(provider: NativeProvider, fmt: str) -> None:
    gen = generator(5)
    segments = [random_matrix(fmt, 37, 256, gen), random_matrix("F32", 9, 256, gen)]
    ids = torch.tensor([0, 36, 37, 45, 17, 3], dtype=torch.int32)
    got, want = torch.zeros(6, 256), torch.zeros(6, 256)
    provider.bind(Embed(provider.pack(segments), 1.5))(count(6), ids, got)
    REFERENCE.bind(Embed(REFERENCE.pack(segments), 1.5))(count(6), ids, want)
    assert torch.equal(got, want)


def test_rope_table(provider: NativeProvider) -> None:
    params = RopeTable(1.0 / 10000 ** (torch.arange(0, 40, 2) / 40), 1.25)
    positions = torch.tensor([0, 1, 17, 4095, 131071], dtype=torch.int32)
    got, want = torch.zeros(5, 40), torch.zeros(5, 40)
    provider.bind(params)(count(5), positions, got)
    REFERENCE.bind(params)(count(5), positions, want)
    close(got, want, 1e-6)


def attend(
    make: Callable[[OpParams], Callable[..., None]],
    requests: list[tuple[int, int]],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    window: int,
    softcap: float,
    seed: int,
    chunks: int = 1,
    with_sinks: bool = False,
    with_slopes: bool = False,
    whole_norm: bool = False,
    rotated: bool = True,
) -> torch.Tensor:
    """Attention outputs of all tokens, request by request; the cached ones are stored in ``chunks``."""
    gen = generator(seed)
    width, total = (heads + 2 * kv_heads) * head_dim, [c + n for c, n in requests]
    data = [torch.randn(t, width, generator=gen) for t in total]
    num_blocks = sum((t + 15) // 16 for t in total) + 3
    blocks = torch.randperm(num_blocks, generator=gen).to(torch.int32)
    max_blocks = max(total) // 16 + 2
    rotary = head_dim // 2 * 2 if rotated else 0
    table = make(RopeTable(1.0 / 1000 ** (torch.arange(0, rotary, 2) / head_dim)))
    norm = torch.rand(heads * head_dim, generator=generator(1)) + 0.5
    q_width, k_width = (heads * head_dim, kv_heads * head_dim) if whole_norm else (head_dim, head_dim)
    store = make(
        RopeStore(
            heads,
            kv_heads,
            head_dim,
            rotary,
            dtype,
            norm[:q_width],
            norm[:k_width] + 0.1,
            1e-6,
            whole_norm,
        )
    )
    slopes = torch.rand(heads, generator=generator(3)) if with_slopes else None
    sinks = torch.randn(heads, generator=generator(2)) * 2 if with_sinks else None
    scale = head_dim**-0.5
    run = make(Attention(heads, kv_heads, head_dim, scale, dtype, softcap, window, sinks, slopes))
    cache = None
    outputs: list[list[torch.Tensor]] = [[] for _ in requests]
    done = [0 for _ in requests]
    for part in range(chunks + 1):
        now = [
            c - done[i]
            if part == chunks - 1
            else (c // chunks if part < chunks else total[i] - done[i])
            for i, (c, _) in enumerate(requests)
        ]
        step = make_step([(done[i], n) for i, n in enumerate(now)], blocks, max_blocks)
        # every request keeps its own blocks from step to step
        used = 0
        for i, t in enumerate(total):
            need = (t + 15) // 16
            step.block_tables[0][i, :need] = blocks[used : used + need]
            used += need
        if cache is None:
            cache = make_cache(step, num_blocks, kv_heads, head_dim, dtype, window)
        cache = type(cache)(**{**cache.__dict__, "block_table": step.block_tables[0]})
        qkv = torch.full((step.max_tokens, width), float("nan"))
        flat = [data[i][done[i] : done[i] + n] for i, n in enumerate(now)]
        qkv[: sum(now)] = torch.cat(flat)
        rope, out = torch.zeros(step.max_tokens, rotary), torch.zeros(step.max_tokens, heads * head_dim)
        table(step.num_tokens, step.positions, rope)
        store(step, rope, qkv, cache)
        run(step, qkv, cache, out)
        start = step.query_start.tolist()
        for i, n in enumerate(now):
            outputs[i].append(out[start[i] : start[i] + n].clone())
            done[i] += n
    return torch.cat([torch.cat(o) for o in outputs])


attention_cases = given(
    group=st.sampled_from([1, 2, 3, 7, 19]),
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([8, 24, 64, 80, 144]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.int8]),
    with_sinks=st.booleans(),
    with_slopes=st.booleans(),
    whole_norm=st.booleans(),
    rotated=st.booleans(),
    window=st.sampled_from([0, 0, 5, 33]),
    softcap=st.sampled_from([0.0, 3.0]),
    requests=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=3),
    seed=seeds,
)


@few
@attention_cases
def test_rope_store_and_attention(
    provider: NativeProvider,
    group: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    with_sinks: bool,
    with_slopes: bool,
    whole_norm: bool,
    rotated: bool,
    window: int,
    softcap: float,
    requests: list[tuple[int, int]],
    seed: int,
) -> None:
    got, want = (
        attend(
            make,
            requests,
            heads=group * kv_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            window=window,
            softcap=softcap,
            seed=seed,
            with_sinks=with_sinks,
            with_slopes=with_slopes,
            whole_norm=whole_norm,
            rotated=rotated,
        )
        for make in (provider.bind, REFERENCE.bind)
    )
    # A key or value on the other side of a rounding boundary of the cache's type moves by one step.
    steps = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.int8: 4e-2}
    close(got, want, steps[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_attention_bits_do_not_depend_on_chunks_company_or_threads(
    provider: NativeProvider, dtype: torch.dtype, window: int, threads: int
) -> None:
    other, reason = load_provider(threads, kernels=provider.kernels)
    assert other is not None, reason
    run = partial(
        attend,
        heads=6,
        kv_heads=2,
        head_dim=40,
        dtype=dtype,
        window=window,
        softcap=0.0,
        seed=11,
        with_slopes=window == 0,
        whole_norm=window == 0,
    )
    whole = run(provider.bind, [(700, 1)])
    chunked = run(other.bind, [(700, 1)], chunks=7)
    together = run(other.bind, [(700, 1), (90, 4)], chunks=3)
    assert torch.equal(whole, chunked)
    assert torch.equal(whole, together[:701])


@pytest.mark.parametrize("fmt", FORMATS)
def test_linear_bits_do_not_depend_on_batch_width_or_threads(
    provider: NativeProvider, fmt: str
) -> None:
    gen = generator(6)
    raw = random_matrix(fmt, 50, 512, gen)
    x = torch.randn(75, 512, generator=gen)
    want = torch.zeros(75, 50)
    provider.bind(Linear(provider.pack([raw])))(count(75), x, want)
    for threads in (1, 3, 4):
        other, reason = load_provider(threads, kernels=provider.kernels)
        assert other is not None, reason
        linear = other.bind(Linear(other.pack([raw])))
        for width in (1, 2, 3, 5, 8, 13, 75):
            got = torch.zeros(width, 50)
            linear(count(width), x[75 - width :].contiguous(), got)
            assert torch.equal(got, want[75 - width :])


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_agree_to_the_bit(variant: str) -> None:
    assert native.self_check(variant) == ""


def test_recorded_program_follows_its_buffers(provider: NativeProvider) -> None:
    gen = generator(7)
    step = StepBuffers.allocate(max_tokens=6, max_reqs=2, max_logits=2, max_blocks=2, num_groups=1)
    embed = provider.bind(Embed(provider.pack([random_matrix("Q8_0", 40, 64, gen)])))
    linear = provider.bind(Linear(provider.pack([random_matrix("Q4_0", 24, 64, gen)])))
    x, out = torch.zeros(6, 64), torch.zeros(6, 24)

    def forward() -> None:
        embed(step.num_tokens, step.token_ids, x)
        linear(step.num_tokens, x, out)

    program = provider.record(forward)
    assert program.num_calls == 2
    assert not x.any(), "recording must not run anything"
    for tokens in ([1, 2, 3], [39], [5, 4, 3, 2, 1, 0]):
        step.num_tokens[0] = len(tokens)
        step.token_ids[: len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        program.run()
        got = out[: len(tokens)].clone()
        forward()
        assert torch.equal(got, out[: len(tokens)])
    assert [name for name, _ in program.profile()] == ["embed", "linear 24x64"]


def test_what_cannot_be_packed_says_why(provider: NativeProvider) -> None:
    gen = generator(8)
    odd = RawTensor("odd", "Q9_9", (2, 32), torch.zeros(8, dtype=torch.uint8))
    assert "Q9_9" in str(provider.why_not_pack([odd]))
    vector = RawTensor("v", "F32", (32,), torch.zeros(128, dtype=torch.uint8))
    assert "not a matrix" in str(provider.why_not_pack([vector]))
    pair = [random_matrix("F32", 2, 32, gen), random_matrix("F32", 2, 64, gen)]
    assert "different widths" in str(provider.why_not_pack(pair))


def test_unknown_kernels_are_refused() -> None:
    loaded, reason = load_provider(1, kernels="sse9")
    assert loaded is None
    assert "sse9" in reason
    assert "portable" in reason
