"""Routing and experts: native against the reference, and the same bits in any company."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ops.native_cases import count, random_matrix
from tokenmill import _native
from tokenmill.ops.native import NativeProvider, load_provider
from tokenmill.ops.reference import ReferenceProvider
from tokenmill.ops.table import Activation, Experts, Route, Scoring

REFERENCE = ReferenceProvider()
seeds = st.integers(0, 2**31 - 1)
few = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module", params=_native.available_kernels())
def provider(request: pytest.FixtureRequest) -> NativeProvider:
    loaded, reason = load_provider(2, kernels=request.param)
    assert loaded is not None, reason
    return loaded


Routed = tuple[torch.Tensor, torch.Tensor]


def run_route(
    provider: NativeProvider | ReferenceProvider, params: Route, logits: torch.Tensor
) -> Routed:
    tokens, width = logits.shape[0], params.top_k + params.shared
    ids, weights = torch.zeros(tokens, width, dtype=torch.int32), torch.zeros(tokens, width)
    provider.bind(params)(count(tokens), logits, ids, weights)
    return ids, weights


@few
@given(
    groups=st.sampled_from([1, 1, 2, 4]),
    size=st.integers(2, 9),
    top_k=st.integers(1, 4),
    scoring=st.sampled_from(["softmax", "sigmoid", "softmax_of_chosen"]),
    renormalise=st.booleans(),
    with_bias=st.booleans(),
    group_sum=st.booleans(),
    shared=st.integers(0, 2),
    shared_gate=st.booleans(),
    tokens=st.integers(1, 9),
    seed=seeds,
)
def test_route(
    provider: NativeProvider,
    groups: int,
    size: int,
    top_k: int,
    scoring: Scoring,
    renormalise: bool,
    with_bias: bool,
    group_sum: bool,
    shared: int,
    shared_gate: bool,
    tokens: int,
    seed: int,
) -> None:
    gen = torch.Generator().manual_seed(seed)
    experts = groups * size
    params = Route(
        experts,
        min(top_k, size * max(1, groups // 2)),
        scoring=scoring,
        renormalise=renormalise,
        scale=1.7,
        bias=torch.randn(experts, generator=gen) if with_bias else None,
        num_groups=groups,
        top_groups=max(1, groups // 2),
        group_sum=group_sum,
        shared=shared,
        shared_gate=shared_gate,
    )
    width = experts + (shared if shared_gate else 0)
    logits = torch.randn(tokens, width, generator=gen) * 3
    got, want = run_route(provider, params, logits), run_route(REFERENCE, params, logits)
    assert torch.equal(got[0], want[0])
    torch.testing.assert_close(got[1], want[1], rtol=1e-5, atol=1e-6)


def test_the_first_among_equal_experts_is_chosen(provider: NativeProvider) -> None:
    for scoring in ("softmax", "sigmoid"):
        ids, weights = run_route(provider, Route(6, 2, scoring=scoring), torch.zeros(1, 6))
        assert ids.tolist() == [[0, 1]]
        assert weights[0, 0] == weights[0, 1]


def test_a_route_that_can_not_be_is_refused() -> None:
    with pytest.raises(ValueError, match="top_k is at most num_experts"):
        Route(4, 5)
    with pytest.raises(ValueError, match="num_groups divides"):
        Route(4, 1, num_groups=3)
    with pytest.raises(ValueError, match="fewer than top_k"):
        Route(8, 4, num_groups=4, top_groups=1)


def make_experts(
    provider: NativeProvider | ReferenceProvider,
    formats: list[str],
    *,
    hidden: int,
    inner: int,
    per_token: int,
    act: Activation,
    biased: bool,
    weigh_input: bool,
    seed: int,
) -> Experts:
    """Experts of the given formats, the last one twice as wide."""
    gen = torch.Generator().manual_seed(seed)
    widths = [inner * (2 if i == len(formats) - 1 else 1) for i in range(len(formats))]
    pairs = list(zip(formats, widths, strict=True))
    gate_up = [random_matrix(f, 2 * width, hidden, gen) for f, width in pairs]
    down = [random_matrix(f, hidden, width, gen) for f, width in pairs]
    return Experts(
        tuple(provider.pack([raw]) for raw in gate_up),
        tuple(provider.pack([raw]) for raw in down),
        per_token,
        act,
        tuple(torch.randn(2 * w, generator=gen) for w in widths) if biased else (),
        tuple(torch.randn(hidden, generator=gen) for _ in widths) if biased else (),
        weigh_input,
    )


def choose(tokens: int, experts: int, per_token: int, gen: torch.Generator) -> Routed:
    ids = torch.stack(
        [torch.randperm(experts, generator=gen)[:per_token].sort().values for _ in range(tokens)]
    )
    return ids.to(torch.int32), torch.rand(tokens, per_token, generator=gen)


@few
@given(
    formats=st.lists(st.sampled_from(["F32", "BF16", "Q8_0", "Q4_0", "Q5_1"]), min_size=1, max_size=6),
    inner=st.sampled_from([32, 96]),
    act=st.sampled_from(["silu", "gelu_tanh", "swiglu_oai"]),
    biased=st.booleans(),
    weigh_input=st.booleans(),
    tokens=st.integers(1, 30),
    seed=seeds,
)
def test_experts(
    provider: NativeProvider,
    formats: list[str],
    inner: int,
    act: Activation,
    biased: bool,
    weigh_input: bool,
    tokens: int,
    seed: int,
) -> None:
    per_token = min(3, len(formats))
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens + 2, 64, generator=gen)
    ids, weights = choose(tokens, len(formats), per_token, gen)
    start = torch.randn(tokens + 2, 64, generator=gen)
    outs = []
    for one in (provider, REFERENCE):
        params = make_experts(
            one,
            formats,
            hidden=64,
            inner=inner,
            per_token=per_token,
            act=act,
            biased=biased,
            weigh_input=weigh_input,
            seed=seed,
        )
        out = start.clone()
        one.bind(params)(count(tokens), x, ids, weights, out)
        outs.append(out)
    got, want = outs
    assert torch.equal(got[tokens:], start[tokens:])
    # Where an activation lies on the edge between two int8 values, one step of it may differ.
    scale = max(want.abs().max().item(), 1.0)
    plain = all(f in ("F32", "BF16") for f in formats)
    assert (got - want).abs().max().item() <= scale * (2e-5 if plain else 2e-2)
    assert (got - want).abs().mean().item() <= scale * (2e-5 if plain else 1e-3)


@pytest.mark.parametrize("fmt", ["BF16", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_bits_do_not_depend_on_company_or_threads(
    provider: NativeProvider, fmt: str, threads: int
) -> None:
    other, reason = load_provider(threads, kernels=provider.kernels)
    assert other is not None, reason
    gen = torch.Generator().manual_seed(3)
    x = torch.randn(140, 64, generator=gen)
    ids, weights = choose(140, 7, 3, gen)

    def run(one: NativeProvider, rows: slice) -> torch.Tensor:
        params = make_experts(
            one,
            [fmt] * 7,
            hidden=64,
            inner=96,
            per_token=3,
            act="silu",
            biased=False,
            weigh_input=False,
            seed=4,
        )
        part = x[rows].contiguous()
        out = torch.zeros_like(part)
        one.bind(params)(
            count(part.shape[0]), part, ids[rows].contiguous(), weights[rows].contiguous(), out
        )
        return out

    whole = run(provider, slice(0, 140))
    for rows in (slice(0, 1), slice(5, 9), slice(17, 80), slice(0, 140)):
        assert torch.equal(run(other, rows), whole[rows])
