"""The native provider: operators of csrc/, called by address.

Every call either runs at once or, while recording, is added to a program that later replays the
whole forward step as one native call. Addresses must therefore stay put: model buffers and step buffers
are allocated once.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

from tokenmill.engine.step import LayerCache, StepBuffers
from tokenmill.ops.choice import MEASURED_AT, NUM_CHOICES, WIDTHS, KernelChoices
from tokenmill.ops.table import (
    LOGITS,
    Attention,
    Embed,
    Experts,
    LayerNorm,
    Linear,
    OpParams,
    RmsNorm,
    RopeStore,
    RopeTable,
    Route,
    operator_name,
)
from tokenmill.weights.packed_file import PackedMatrix
from tokenmill.weights.tensor import RawTensor

if TYPE_CHECKING:
    from tokenmill import _native

log = logging.getLogger("tokenmill.ops")

DTYPE_NAMES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int8: "int8",
}

MAX_EXPERTS = 1024
"""What the kernels have room for."""


@dataclass(frozen=True)
class NativeWeight:
    """A matrix in the tiles of csrc/packed.h."""

    matrix: _native.Matrix
    executor: _native.Executor
    out_features: int
    in_features: int
    segments: tuple[tuple[str, int], ...]
    nbytes: int
    provider: str = "native"

    @property
    def formats(self) -> tuple[str, ...]:
        """The checkpoint's formats of its segments, each once."""
        return tuple(dict.fromkeys(name for name, _ in self.segments))

    def tiles(self) -> PackedMatrix:
        """The tiles as they lie in memory."""
        memory = (ctypes.c_uint8 * self.nbytes).from_address(self.matrix.address)
        data = torch.frombuffer(memory, dtype=torch.uint8)
        return PackedMatrix(self.segments, self.in_features, data, self.matrix)

    def dense(self) -> torch.Tensor:
        """The matrix as fp32 [out_features, in_features], rounded as the checkpoint format rounds."""
        out = torch.empty(self.out_features, self.in_features)
        self.executor.dense(self.matrix, out.data_ptr())
        return out


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _checked(tensor: torch.Tensor | None, width: int, what: str) -> torch.Tensor | None:
    """A small fp32 parameter, contiguous, of the width that the kernel will read."""
    if tensor is None:
        return None
    if tensor.numel() != width:
        raise ValueError(f"{what} has {tensor.numel()} elements, not {width}")
    return tensor.detach().to(torch.float32).contiguous()


class NativeProvider:
    """Operators on this process's own thread pool.

    kernels: which compiled variant to use ("avx512", "avxvnni", "avx2" or "portable").
    choices: lets measurement choose another one for matrix products, where that is faster.
    """

    name = "native"

    def __init__(
        self,
        num_threads: int,
        cpus: Sequence[int],
        kernels: str,
        choices: KernelChoices | None = None,
    ) -> None:
        from tokenmill import _native

        self._native = _native
        self.pool = _native.ThreadPool(num_threads, list(cpus))
        self.executor = _native.Executor(self.pool, kernels)
        self.kernels = kernels
        self.choices = choices
        self._blocks: dict[str, int] = dict(_native.formats())

    def why_not(self, params: OpParams) -> str | None:
        """None if the operator can run here, else why not."""
        if isinstance(params, (Embed, Linear)) and params.weight.provider != self.name:
            return f"the weight is packed for {params.weight.provider}"
        if isinstance(params, Experts) and any(
            weight.provider != self.name for weight in (*params.gate_up, *params.down)
        ):
            return "the experts are packed for another provider"
        if isinstance(params, Route) and params.num_experts > MAX_EXPERTS:
            return f"more than {MAX_EXPERTS} experts"
        if isinstance(params, (RopeStore, Attention)):
            if params.num_heads % params.num_kv_heads:
                return "num_heads is not a multiple of num_kv_heads"
            if params.cache_dtype not in DTYPE_NAMES:
                return f"no cache of {params.cache_dtype}"
        return None

    def why_not_pack(self, segments: Sequence[RawTensor]) -> str | None:
        """None if these row segments can be packed into one matrix, else why not."""
        for segment in segments:
            block = self._blocks.get(segment.format)
            if block is None:
                return f"no packing for format {segment.format}"
            if len(segment.shape) != 2:
                return f"{segment.name} is not a matrix"
            if segment.shape[1] % block:
                return f"{segment.name} has {segment.shape[1]} columns, not a multiple of {block}"
            if segment.shape[1] != segments[0].shape[1]:
                return "the segments have different widths"
        mixed = {self._blocks[s.format] > 1 for s in segments}
        if mixed == {True} or mixed == {False}:
            return None
        # quantised and unquantised rows may share a matrix only where groups of 32 fit
        return None if segments[0].shape[1] % 32 == 0 else "the width is not a multiple of 32"

    def pack(self, segments: Sequence[RawTensor]) -> NativeWeight:
        """Tiles of sixteen interleaved rows; exact for every format."""
        data = [s.data.contiguous() for s in segments]
        matrix = self._native.pack(
            self.pool,
            [s.format for s in segments],
            [s.shape[0] for s in segments],
            segments[0].shape[1],
            [d.data_ptr() for d in data],
        )
        return self._weight(matrix, tuple((s.format, s.shape[0]) for s in segments))

    def view(self, packed: PackedMatrix) -> NativeWeight:
        """A matrix whose tiles stay where they lie. Raises ValueError if they have another size."""
        matrix = self._native.view_tiles(
            [name for name, _ in packed.segments],
            [rows for _, rows in packed.segments],
            packed.in_features,
            packed.data.data_ptr(),
            packed.data.numel(),
            packed.owner,
        )
        return self._weight(matrix, packed.segments)

    def layout(self) -> str:
        """A digest of what packing makes of known bytes: equal digests, equal tiles.

        Computed rather than counted, so that no change of the packing can be forgotten.
        """
        rows, cols, digest = 15, 256, hashlib.sha256()
        source = torch.arange(rows * cols * 4, dtype=torch.int32).mul(37).remainder(251).to(torch.uint8)
        for name in self._blocks:
            matrix = self._native.pack(self.pool, [name], [rows], cols, [source.data_ptr()])
            digest.update(name.encode() + ctypes.string_at(matrix.address, matrix.nbytes))
        return digest.hexdigest()

    def _weight(self, matrix: _native.Matrix, segments: tuple[tuple[str, int], ...]) -> NativeWeight:
        return NativeWeight(
            matrix=matrix,
            executor=self.executor,
            out_features=matrix.rows,
            in_features=matrix.cols,
            segments=segments,
            nbytes=matrix.nbytes,
        )

    def bind(self, params: OpParams) -> Callable[..., None]:
        """The operator as a callable over tensors (see ops/table.py for each one's arguments)."""
        if isinstance(params, Embed):
            return self._embed(params)
        if isinstance(params, Linear):
            return self._linear(params)
        if isinstance(params, RmsNorm):
            return self._norm(params, centre=False)
        if isinstance(params, LayerNorm):
            return self._norm(params, centre=True)
        if isinstance(params, RopeTable):
            return self._rope_table(params)
        if isinstance(params, RopeStore):
            return self._rope_store(params)
        if isinstance(params, Attention):
            return self._attention(params)
        return self._route(params) if isinstance(params, Route) else self._experts(params)

    def record(self, forward: Callable[[], object]) -> _native.Program:
        """Notes the operators that ``forward`` calls without running them; ``run()`` runs them all."""
        self.executor.begin_recording()
        try:
            forward()
        finally:
            program = self.executor.end_recording()
        return program

    def _embed(self, p: Embed) -> Callable[..., None]:
        matrix, call = self._matrix(p.weight), self.executor.embed
        scale, accumulate = p.scale, p.accumulate

        def embed(rows: torch.Tensor, token_ids: torch.Tensor, out: torch.Tensor) -> None:
            call(rows.data_ptr(), token_ids.data_ptr(), matrix, out.data_ptr(), scale, accumulate)

        return embed

    def _linear(self, p: Linear) -> Callable[..., None]:
        weight, call, name = self._matrix(p.weight), self.executor.linear, operator_name(p)
        norm = _checked(p.norm, p.weight.in_features, "norm")
        norm_bias = _checked(p.norm_bias, p.weight.in_features, "norm_bias")
        bias = _checked(p.bias, p.weight.out_features, "bias")
        eps, softcap, act, accumulate = p.eps, p.softcap, p.act or "", p.accumulate
        if norm is not None and act:
            raise ValueError("a linear layer takes a norm or an activation before it, not both")

        def measure(variant: str, rows: int) -> float:
            width = p.weight.in_features * (2 if act and p.gated else 1)
            count = torch.tensor([rows], dtype=torch.int32)
            x, out = torch.full((rows, width), 0.5), torch.empty(rows, p.weight.out_features)
            started = time.perf_counter()
            call(
                count.data_ptr(), x.data_ptr(), 0, weight, _address(norm), _address(bias),
                out.data_ptr(), eps, softcap, act, accumulate, rows, name,
                _address(norm_bias), p.centre, p.gated, p.scale, [variant] * NUM_CHOICES,
            )  # fmt: skip
            return time.perf_counter() - started

        variants: list[str] = []
        if self.choices is not None:
            operator = f"{name} {'+'.join(p.weight.formats)}"
            # Few logits are wanted at once, and measuring many of them would take long.
            most_rows = WIDTHS[1] if p.label == LOGITS else max(MEASURED_AT)
            variants = list(self.choices.choose(operator, measure, most_rows))

        def linear(
            rows: torch.Tensor,
            x: torch.Tensor,
            out: torch.Tensor,
            row_index: torch.Tensor | None = None,
        ) -> None:
            call(
                rows.data_ptr(), x.data_ptr(), _address(row_index), weight, _address(norm),
                _address(bias), out.data_ptr(), eps, softcap, act, accumulate, out.shape[0], name,
                _address(norm_bias), p.centre, p.gated, p.scale, variants,
            )  # fmt: skip

        return linear

    def _norm(self, p: RmsNorm | LayerNorm, centre: bool) -> Callable[..., None]:
        weight, call = p.weight.detach().to(torch.float32).contiguous(), self.executor.rms_norm
        eps, accumulate, width = p.eps, p.accumulate, weight.numel()
        bias = _checked(p.bias, width, "bias") if isinstance(p, LayerNorm) else None

        def norm(rows: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
            call(
                rows.data_ptr(), x.data_ptr(), weight.data_ptr(), out.data_ptr(), width, eps,
                accumulate, _address(bias), centre,
            )  # fmt: skip

        return norm

    def _rope_table(self, p: RopeTable) -> Callable[..., None]:
        inv_freq, call, scale = (
            p.inv_freq.detach().to(torch.float32).contiguous(),
            self.executor.rope_table,
            p.scale,
        )

        def rope_table(rows: torch.Tensor, positions: torch.Tensor, out: torch.Tensor) -> None:
            call(
                rows.data_ptr(), positions.data_ptr(), inv_freq.data_ptr(), out.data_ptr(),
                2 * inv_freq.numel(), scale,
            )  # fmt: skip

        return rope_table

    def _rope_store(self, p: RopeStore) -> Callable[..., None]:
        call = self.executor.rope_store
        q_norm, k_norm = (
            _checked(p.q_norm, p.head_dim * (p.num_heads if p.whole_norm else 1), "q_norm"),
            _checked(p.k_norm, p.head_dim * (p.num_kv_heads if p.whole_norm else 1), "k_norm"),
        )

        def rope_store(
            step: StepBuffers, rope: torch.Tensor, qkv: torch.Tensor, cache: LayerCache
        ) -> None:
            call(
                step.num_tokens.data_ptr(), step.positions.data_ptr(), step.token_req.data_ptr(),
                rope.data_ptr(), qkv.data_ptr(), _address(q_norm), _address(k_norm), self._cache(cache),
                p.num_heads, p.num_kv_heads, p.head_dim, p.rotary_dim, p.eps,
                p.whole_norm,
            )  # fmt: skip

        return rope_store

    def _attention(self, p: Attention) -> Callable[..., None]:
        call = self.executor.attention
        sinks = _checked(p.sinks, p.num_heads, "sinks")
        slopes = _checked(p.slopes, p.num_heads, "slopes")

        def attention(
            step: StepBuffers, qkv: torch.Tensor, cache: LayerCache, out: torch.Tensor
        ) -> None:
            call(
                step.num_tokens.data_ptr(), step.num_reqs.data_ptr(), step.positions.data_ptr(),
                step.query_start.data_ptr(), qkv.data_ptr(), out.data_ptr(), self._cache(cache),
                qkv.shape[1], p.num_heads, p.num_kv_heads, p.head_dim, p.window, p.scale, p.softcap,
                _address(sinks), _address(slopes),
            )  # fmt: skip

        return attention

    def _route(self, p: Route) -> Callable[..., None]:
        call, bias = self.executor.route, _checked(p.bias, p.num_experts, "bias")

        def route(
            rows: torch.Tensor, logits: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
        ) -> None:
            call(
                rows.data_ptr(), logits.data_ptr(), _address(bias), ids.data_ptr(), weights.data_ptr(),
                p.num_experts, p.top_k, p.shared, p.num_groups, p.top_groups, p.scoring, p.group_sum,
                p.renormalise, p.shared_gate, p.scale,
            )  # fmt: skip

        return route

    def _experts(self, p: Experts) -> Callable[..., None]:
        def biases(given: tuple[torch.Tensor, ...], widths: list[int]) -> list[torch.Tensor]:
            pairs = zip(given, widths, strict=True)
            return [b for b in (_checked(b, n, "bias") for b, n in pairs) if b is not None]

        call, hidden = self.executor.experts, p.gate_up[0].in_features
        up_bias = biases(p.gate_up_bias, [w.out_features for w in p.gate_up] if p.gate_up_bias else [])
        down_bias = biases(p.down_bias, [hidden] * len(p.down) if p.down_bias else [])
        tables = self._native.ExpertTables(
            [self._matrix(w) for w in p.gate_up],
            [self._matrix(w) for w in p.down],
            [b.data_ptr() for b in up_bias],
            [b.data_ptr() for b in down_bias],
        )
        kept = (p, up_bias, down_bias)  # the tables hold addresses only

        def experts(
            rows: torch.Tensor,
            x: torch.Tensor,
            ids: torch.Tensor,
            weights: torch.Tensor,
            out: torch.Tensor,
        ) -> None:
            call(
                rows.data_ptr(), x.data_ptr(), ids.data_ptr(), weights.data_ptr(), tables,
                out.data_ptr(), kept[0].per_token, hidden, p.act, p.weigh_input, x.shape[0],
            )  # fmt: skip

        return experts

    def _cache(self, cache: LayerCache) -> _native.Cache:
        return self._native.Cache(
            cache.pool.data_ptr(), cache.block_bytes, cache.offset, cache.block_table.data_ptr(),
            cache.block_table.shape[1], DTYPE_NAMES[cache.dtype],
        )  # fmt: skip

    @staticmethod
    def _matrix(weight: object) -> _native.Matrix:
        assert isinstance(weight, NativeWeight)
        return weight.matrix


def load_provider(
    num_threads: int,
    cpus: Sequence[int] = (),
    kernels: str | None = None,
    make_choices: Callable[[Sequence[str], Callable[[str], bool]], KernelChoices] | None = None,
) -> tuple[NativeProvider | None, str]:
    """The native provider with the best kernels that this CPU runs and that pass their self-check.

    kernels: take this variant; None takes $TOKENMILL_KERNELS or the best. make_choices: of the variants
    (the best first; the portable one only if it is the only one) and of what tells whether one passes
    its self-check; not asked if one variant is wanted.
    Returns (provider, which kernels) or (None, why there is none).
    """
    try:
        from tokenmill import _native
    except ImportError as error:
        return None, f"the native module was not built ({error}); install g++ and reinstall tokenmill"
    wanted = kernels or os.environ.get("TOKENMILL_KERNELS")
    available: list[str] = _native.available_kernels()
    if wanted is not None and wanted not in available:
        return (
            None,
            f"kernels {wanted!r} are not available here; this CPU can run {', '.join(available)}",
        )

    @cache
    def works(name: str) -> bool:
        reason = _native.self_check(name)
        if reason:
            log.warning("kernels %s failed their self-check and are not used: %s", name, reason)
        return not reason

    for name in [wanted] if wanted else available:
        if works(name):
            others = [other for other in available if other not in (name, "portable")]
            choices = make_choices((name, *others), works) if make_choices and not wanted else None
            return NativeProvider(num_threads, cpus, name, choices), f"kernels {name}"
    return None, "no kernel variant passed its self-check"


def measure_ceilings(
    num_threads: int, cpus: Sequence[int] = (), buffer_bytes: int = 512 << 20
) -> dict[str, float]:
    """What this machine can do: bytes read a second, and fp32 and int8 operations a second.

    A multiply-add counts as two operations. Keys: read_bytes_s, fp32_ops_s, int8_ops_s.
    Raises RuntimeError if the native module is missing.
    """
    provider, reason = load_provider(num_threads, cpus)
    if provider is None:
        raise RuntimeError(reason)
    from tokenmill import _native

    return {
        "read_bytes_s": _native.measure_read_bandwidth(provider.pool, provider.kernels, buffer_bytes),
        "fp32_ops_s": _native.measure_fp32(provider.pool, provider.kernels),
        "int8_ops_s": _native.measure_int8(provider.pool, provider.kernels),
    }
