"""The meaning of every operator, in plain torch; also the path for machines without native kernels.

Two rules keep "a result belongs to its request" true here:

- whatever sums or calls a transcendental function works on one row (token) at a time, in tensors whose
  shape depends on that row alone. torch may give another last bit when a call's shape changes, because
  vector bodies and scalar tails differ; only operations that IEEE 754 rounds exactly (``+ - * / sqrt``,
  maximum, rounding) are applied to many rows at once;
- matrices are multiplied in tiles of exactly ``TILE_ROWS`` by ``TILE_FEATURES``, the last ones padded
  with zeros, and at most ``TILE_WIDTH`` summands, so the kernel that the BLAS library picks and its
  order of summation depend neither on the number of rows nor on the number of threads (tested over
  many shapes).

Only the first ``rows`` rows of the capacity-sized buffers are read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tokenmill.cache.spec import BLOCK_SIZE
from tokenmill.engine.step import LayerCache, StepBuffers
from tokenmill.ops.reference_route import bind_route
from tokenmill.ops.table import (
    Activation,
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
    Weight,
)
from tokenmill.weights.ggml_formats import dequantize
from tokenmill.weights.tensor import RawTensor

TILE_ROWS = 16
"""Rows of activations in one matrix multiplication."""

TILE_FEATURES = 64
"""Rows of the matrix in one multiplication: threads of BLAS libraries share a batch by whole tiles."""

TILE_WIDTH = 256
"""Summands in one matrix multiplication: so few that BLAS libraries don't split them among threads."""

GROUP = 32
"""Consecutive activations that share one int8 scale."""

PIECE = 16384
"""Most elements in one elementwise call; torch splits longer ones between threads."""

PLAIN_FORMATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Formats whose products use the activations as they are."""


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of a matrix that are multiplied alike.

    matrix: [rows, in_features], fp32, or the checkpoint's own 16-bit type.
    """

    matrix: Tensor
    quantised: bool


@dataclass(eq=False)
class ReferenceWeight:
    """A matrix as the reference keeps it: dequantised, or in the checkpoint's own 16-bit type."""

    segments: tuple[Segment, ...]
    out_features: int
    in_features: int
    formats: tuple[str, ...]
    nbytes: int
    provider: str = "reference"

    def dense(self) -> Tensor:
        """The matrix as fp32 [out_features, in_features]."""
        return torch.cat([s.matrix.float() for s in self.segments])

    def take_rows(self, index: Tensor) -> Tensor:
        """Rows ``index`` as fp32 [len(index), in_features]."""
        if len(self.segments) == 1:
            return self.segments[0].matrix[index].float()
        return self.dense()[index]


class ReferenceProvider:
    """Runs every operator of the table in plain torch."""

    name = "reference"

    def why_not(self, params: OpParams) -> str | None:
        """None, unless the weight was packed by another provider."""
        weight = params.weight if isinstance(params, Embed | Linear) else None
        if weight is not None and not isinstance(weight, ReferenceWeight):
            return f"the weight is packed for {weight.provider}"
        return None

    def bind(self, params: OpParams) -> Callable[..., None]:
        """The operator, ready to be called."""
        match params:
            case Embed():
                return _bind_embed(params)
            case Linear():
                return _bind_linear(params)
            case RmsNorm():
                return _bind_rms_norm(params)
            case LayerNorm():
                return _bind_layer_norm(params)
            case RopeTable():
                return _bind_rope_table(params)
            case RopeStore():
                return _bind_rope_store(params)
            case Attention():
                return _bind_attention(params)
            case Route():
                return bind_route(params)
            case Experts():
                return _bind_experts(params)

    def why_not_pack(self, segments: Sequence[RawTensor]) -> str | None:
        """None, unless the segments are no matrices of equal width."""
        if not segments or any(len(s.shape) != 2 for s in segments):
            return "it packs matrices only"
        if len({s.shape[1] for s in segments}) != 1:
            return "the segments differ in width"
        return None

    def pack(self, segments: Sequence[RawTensor]) -> Weight:
        """One matrix out of row segments; neighbours that are multiplied alike become one."""
        runs: list[list[Segment]] = []
        for raw in segments:
            quantised = raw.format not in PLAIN_FORMATS
            matrix = dequantize(raw).reshape(raw.shape)
            if not quantised:
                # Lossless, and half the memory: the values came from this very type.
                matrix = matrix.to(PLAIN_FORMATS[raw.format])
            segment = Segment(matrix.contiguous(), quantised)
            last = runs[-1][-1] if runs else None
            if last and last.quantised == quantised and last.matrix.dtype == matrix.dtype:
                runs[-1].append(segment)
            else:
                runs.append([segment])
        merged = tuple(Segment(torch.cat([s.matrix for s in run]), run[0].quantised) for run in runs)
        return ReferenceWeight(
            segments=merged,
            out_features=sum(s.shape[0] for s in segments),
            in_features=segments[0].shape[1],
            formats=tuple(dict.fromkeys(s.format for s in segments)),
            nbytes=sum(s.matrix.nbytes for s in merged),
        )


def _rows_of(rows: Tensor) -> int:
    return int(rows.item())


def per_row(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An elementwise function of x [n, width], in pieces whose shape and alignment never vary."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for row in range(x.shape[0]):
        for start in range(0, x.shape[1], PIECE):
            # clone: a fresh, aligned tensor, whatever the row's address was.
            out[row, start : start + PIECE] = function(x[row, start : start + PIECE].clone())
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension of [n, ..., width]."""
    mean = torch.empty((*x.shape[:-1], 1))
    for row in range(x.shape[0]):
        mean[row] = x[row].square().mean(dim=-1, keepdim=True)
    return x / torch.sqrt(mean + eps) * weight


def activate(x: Tensor, kind: Activation) -> Tensor:
    """``act(gate) * up`` of [n, 2 * width], gate first."""
    width = x.shape[1] // 2
    if kind == "swiglu_oai":
        gate = x[:, :width].clamp(max=7)
        gate = gate * per_row(torch.sigmoid, gate * 1.702)
        return gate * (x[:, width:].clamp(-7, 7) + 1)
    return plain_activation(x[:, :width], kind) * x[:, width:]


def plain_activation(x: Tensor, kind: Activation) -> Tensor:
    """``act(x)``, of the same shape."""
    match kind:
        case "silu":
            return per_row(functional.silu, x)
        case "gelu":
            return per_row(functional.gelu, x)
        case "gelu_tanh":
            return per_row(lambda piece: functional.gelu(piece, approximate="tanh"), x)
        case "relu":
            return x.relu()
        case "relu2":
            return x.relu().square()
        case "swiglu_oai":
            raise ValueError("swiglu_oai acts on two halves, gate and up")


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over rows of x [n, width]."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for row in range(x.shape[0]):
        centred = x[row] - x[row].clone().mean()
        out[row] = centred / torch.sqrt(centred.square().mean() + eps) * weight
    return out if bias is None else out + bias


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """``cap * tanh(x / cap)``."""
    return per_row(lambda piece: cap * torch.tanh(piece / cap), x)


def quantise_activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 in groups of 32 along each row of x [n, K].

    Returns q, int8 [n, K], and scale, fp32 [n, K / 32]: ``scale = max|x| / 127`` and
    ``q = round-half-even(x * (1 / scale))``. A group whose scale is below the smallest normal number
    has scale 0 and q 0: the inverse might overflow.
    """
    q, scale = _quantise(x.reshape(x.shape[0], -1, GROUP))
    return q.reshape(x.shape), scale


def _quantise(groups: Tensor) -> tuple[Tensor, Tensor]:
    """int8 of the same shape, and one scale for each group of the last dimension."""
    scale = groups.abs().amax(dim=-1) / 127
    scale = torch.where(scale < torch.finfo(torch.float32).tiny, 0.0, scale)
    inverse = torch.where(scale == 0, 0.0, 1 / scale).unsqueeze(-1)
    q = torch.round(groups * inverse)
    return q.clamp(-127, 127).to(torch.int8), scale


def dequantise_activations(q: Tensor, scale: Tensor) -> Tensor:
    """``q * scale`` as fp32 [n, K]."""
    groups = q.reshape(q.shape[0], -1, GROUP).float()
    return (groups * scale.unsqueeze(-1)).reshape(q.shape)


def tiled_matmul(x: Tensor, matrix: Tensor) -> Tensor:
    """``x @ matrix.T``, fp32 [n, N], from x [n, K] and matrix [N, K], tile by tile."""
    features, width = matrix.shape
    dense = functional.pad(matrix.float(), (0, 0, 0, -features % TILE_FEATURES))
    tiles = dense.reshape(-1, TILE_FEATURES, width).transpose(1, 2)
    out = torch.empty((x.shape[0], features))
    for start in range(0, x.shape[0], TILE_ROWS):
        rows = min(TILE_ROWS, x.shape[0] - start)
        tile = torch.zeros((TILE_ROWS, width))
        tile[:rows] = x[start : start + rows]
        y = torch.zeros((tiles.shape[0], TILE_ROWS, TILE_FEATURES))
        for k in range(0, width, TILE_WIDTH):
            part = tile[:, k : k + TILE_WIDTH].expand(tiles.shape[0], -1, -1)
            y += torch.bmm(part, tiles[:, k : k + TILE_WIDTH])
        out[start : start + rows] = y.transpose(0, 1).reshape(TILE_ROWS, -1)[:rows, :features]
    return out


def mix_values(weights: Tensor, values: Tensor) -> Tensor:
    """``weights @ values``, [kv_heads, group, head_dim], ``TILE_WIDTH`` tokens at a time."""
    out = torch.zeros((*weights.shape[:2], values.shape[2]))
    for start in range(0, values.shape[1], TILE_WIDTH):
        stop = start + TILE_WIDTH
        out += torch.bmm(weights[:, :, start:stop], values[:, start:stop])
    return out


def _bind_embed(p: Embed) -> Callable[..., None]:
    weight = _reference_weight(p.weight)

    def embed(rows: Tensor, token_ids: Tensor, out: Tensor) -> None:
        n = _rows_of(rows)
        y = weight.take_rows(token_ids[:n]) * p.scale
        out[:n] = out[:n] + y if p.accumulate else y

    return embed


def _multiply(weight: ReferenceWeight, inputs: Tensor) -> Tensor:
    """``inputs @ weight.T``, with activations of int8 where the weight is quantised."""
    quantised = inputs
    if any(s.quantised for s in weight.segments):
        quantised = dequantise_activations(*quantise_activations(inputs))
    parts = [tiled_matmul(quantised if s.quantised else inputs, s.matrix) for s in weight.segments]
    return torch.cat(parts, dim=1)


def _bind_experts(p: Experts) -> Callable[..., None]:
    gate_up, down = ([_reference_weight(w) for w in weights] for weights in (p.gate_up, p.down))

    def experts(rows: Tensor, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor) -> None:
        n = _rows_of(rows)
        for t in range(n):
            for expert, weight in zip(ids[t].tolist(), weights[t], strict=True):
                entering = x[t : t + 1] * weight if p.weigh_input else x[t : t + 1]
                y = _multiply(gate_up[expert], entering)
                if p.gate_up_bias:
                    y = y + p.gate_up_bias[expert]
                y = _multiply(down[expert], activate(y, p.act))
                if p.down_bias:
                    y = y + p.down_bias[expert]
                out[t] += y[0] if p.weigh_input else weight * y[0]

    return experts


def _bind_linear(p: Linear) -> Callable[..., None]:
    return linear_around(p, partial(_multiply, _reference_weight(p.weight)))


def linear_around(p: Linear, multiply: Callable[[Tensor], Tensor]) -> Callable[..., None]:
    """All of a linear operator but its matrix product, fp32 [n, in_features] -> [n, out_features]."""

    def linear(rows: Tensor, x: Tensor, out: Tensor, row_index: Tensor | None = None) -> None:
        n = _rows_of(rows)
        if n == 0:
            return
        inputs = x[:n] if row_index is None else x[row_index[:n]]
        if p.norm is not None and p.centre:
            inputs = layer_norm(inputs, p.norm, p.norm_bias, p.eps)
        elif p.norm is not None:
            inputs = rms_norm(inputs, p.norm, p.eps)
        if p.act is not None:
            inputs = (activate if p.gated else plain_activation)(inputs, p.act)
        y = multiply(inputs)
        if p.bias is not None:
            y = y + p.bias
        if p.scale != 1.0:
            y = y * p.scale
        if p.softcap > 0:
            y = soft_cap(y, p.softcap)
        out[:n] = out[:n] + y if p.accumulate else y

    return linear


def _bind_rms_norm(p: RmsNorm) -> Callable[..., None]:
    def norm(rows: Tensor, x: Tensor, out: Tensor) -> None:
        n = _rows_of(rows)
        y = rms_norm(x[:n], p.weight, p.eps)
        out[:n] = out[:n] + y if p.accumulate else y

    return norm


def _bind_layer_norm(p: LayerNorm) -> Callable[..., None]:
    def norm(rows: Tensor, x: Tensor, out: Tensor) -> None:
        n = _rows_of(rows)
        y = layer_norm(x[:n], p.weight, p.bias, p.eps)
        out[:n] = out[:n] + y if p.accumulate else y

    return norm


def _bind_rope_table(p: RopeTable) -> Callable[..., None]:
    def rope_table(rows: Tensor, positions: Tensor, out: Tensor) -> None:
        n = _rows_of(rows)
        angles = positions[:n, None].float() * p.inv_freq
        half = p.inv_freq.numel()
        out[:n, :half] = per_row(torch.cos, angles) * p.scale
        out[:n, half:] = per_row(torch.sin, angles) * p.scale

    return rope_table


def _pages(cache: LayerCache) -> tuple[Tensor, Tensor]:
    """A layer's keys [blocks, kv_heads, head_dim, 16] and values [blocks, kv_heads, 16, head_dim]."""
    blocks = cache.pool.numel() // cache.block_bytes
    half = cache.num_kv_heads * cache.head_dim * BLOCK_SIZE * cache.dtype.itemsize
    raw = cache.pool[: blocks * cache.block_bytes].view(blocks, cache.block_bytes)
    keys = raw[:, cache.offset : cache.offset + half].view(cache.dtype)
    values = raw[:, cache.offset + half : cache.offset + 2 * half].view(cache.dtype)
    return (
        keys.view(blocks, cache.num_kv_heads, cache.head_dim, BLOCK_SIZE),
        values.view(blocks, cache.num_kv_heads, BLOCK_SIZE, cache.head_dim),
    )


def _scales(cache: LayerCache) -> tuple[Tensor, Tensor]:
    """The scales of a layer's int8 keys and values, [blocks, kv_heads, 16] each."""
    blocks = cache.pool.numel() // cache.block_bytes
    raw = cache.pool[: blocks * cache.block_bytes].view(blocks, cache.block_bytes)
    size = cache.num_kv_heads * BLOCK_SIZE * 4
    start = cache.offset + 2 * cache.num_kv_heads * cache.head_dim * BLOCK_SIZE
    shape = (blocks, cache.num_kv_heads, BLOCK_SIZE)
    return (
        raw[:, start : start + size].view(torch.float32).view(shape),
        raw[:, start + size : start + 2 * size].view(torch.float32).view(shape),
    )


def _rotate(heads: Tensor, rope: Tensor, rotary_dim: int) -> None:
    """Rotate heads [n, heads, head_dim] in place by rope [n, rotary_dim]."""
    half = rotary_dim // 2
    cos = rope[:, None, :half]
    sin = rope[:, None, half:rotary_dim]
    first = heads[..., :half].clone()
    second = heads[..., half:rotary_dim].clone()
    heads[..., :half] = first * cos - second * sin
    heads[..., half:rotary_dim] = second * cos + first * sin


def _bind_rope_store(p: RopeStore) -> Callable[..., None]:
    q_width = p.num_heads * p.head_dim
    kv_width = p.num_kv_heads * p.head_dim

    def rope_store(step: StepBuffers, rope: Tensor, qkv: Tensor, cache: LayerCache) -> None:
        n = _rows_of(step.num_tokens)
        # Views of qkv, so what follows changes the buffer itself.
        q = qkv[:n, :q_width].view(n, p.num_heads, p.head_dim)
        k = qkv[:n, q_width : q_width + kv_width].view(n, p.num_kv_heads, p.head_dim)
        v = qkv[:n, q_width + kv_width :].view(n, p.num_kv_heads, p.head_dim)
        for heads, norm in ((q, p.q_norm), (k, p.k_norm)):
            if norm is not None:
                rows = heads.reshape(n, 1, norm.numel()) if p.whole_norm else heads
                heads.copy_(rms_norm(rows, norm, p.eps).view(heads.shape))
        _rotate(q, rope[:n], p.rotary_dim)
        _rotate(k, rope[:n], p.rotary_dim)
        positions = step.positions[:n].long()
        blocks = cache.block_table[step.token_req[:n].long(), positions // BLOCK_SIZE].long()
        slots = positions % BLOCK_SIZE
        keys, values = _pages(cache)
        if cache.dtype is torch.int8:
            key_scales, value_scales = _scales(cache)
            k, key_scales[blocks, :, slots] = _quantise(k)
            v, value_scales[blocks, :, slots] = _quantise(v)
        keys[blocks, :, :, slots] = k.to(cache.dtype)
        values[blocks, :, slots, :] = v.to(cache.dtype)

    return rope_store


def _bind_attention(p: Attention) -> Callable[..., None]:
    group = p.num_heads // p.num_kv_heads
    width = p.num_heads * p.head_dim

    def attention(step: StepBuffers, qkv: Tensor, cache: LayerCache, out: Tensor) -> None:
        keys, values = _pages(cache)
        for token in range(_rows_of(step.num_tokens)):
            position = int(step.positions[token])
            first = max(0, position - p.window + 1) if p.window else 0
            first_block = first // BLOCK_SIZE
            table = cache.block_table[int(step.token_req[token])]
            blocks = table[first_block : position // BLOCK_SIZE + 1].long()
            visible = slice(first - first_block * BLOCK_SIZE, position - first_block * BLOCK_SIZE + 1)
            # Cut to the visible tokens first: the rest of a page may hold anything, NaN included.
            k = keys[blocks].permute(1, 2, 0, 3).flatten(2)[:, :, visible].float().contiguous()
            v = values[blocks].transpose(0, 1).flatten(1, 2)[:, visible].float().contiguous()
            if cache.dtype is torch.int8:
                k_scale, v_scale = (
                    s[blocks].transpose(0, 1).flatten(1)[:, visible] for s in _scales(cache)
                )
                k, v = k * k_scale.unsqueeze(1), v * v_scale.unsqueeze(2)
            q = qkv[token, :width].clone().view(p.num_kv_heads, group, p.head_dim)
            scores = torch.bmm(q, k) * p.scale
            if p.softcap > 0:
                scores = p.softcap * torch.tanh(scores / p.softcap)
            if p.slopes is not None:
                distance = torch.arange(first - position, 1, dtype=torch.float32)
                scores = scores + p.slopes.view(p.num_kv_heads, group, 1) * distance
            if p.sinks is not None:
                scores = torch.cat((scores, p.sinks.view(p.num_kv_heads, group, 1)), dim=-1)
            weights = torch.softmax(scores, dim=-1)[..., : v.shape[1]]
            out[token] = mix_values(weights.contiguous(), v).flatten()

    return attention


def _reference_weight(weight: Weight) -> ReferenceWeight:
    if not isinstance(weight, ReferenceWeight):
        raise TypeError(f"a weight packed for {weight.provider} was bound to the reference")
    return weight
