"""From a checkpoint's tensors to packed weights, checked before anything is allocated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from tokenmill.config import CacheDType, LoadConfig
from tokenmill.errors import CheckpointError
from tokenmill.models.quantize import quantisable, quantise
from tokenmill.models.rearranged import RearrangedCheckpoint, Source
from tokenmill.ops.table import OpTable, Weight
from tokenmill.weights.ggml_formats import dequantize
from tokenmill.weights.tensor import RawTensor

if TYPE_CHECKING:
    from tokenmill.models.packed_weights import PackedWeights
    from tokenmill.weights.checkpoint import Checkpoint

DTYPES = {
    "float32": ("F32", torch.float32),
    "float16": ("F16", torch.float16),
    "bfloat16": ("BF16", torch.bfloat16),
}

COMPUTED = re.compile(r"(^|\.)rotary_emb\.inv_freq$|^rope_(freqs|factors_long|factors_short)\.weight$")
"""Tensors that only repeat what the configuration says, or that rope reads where it needs them."""

LAST_PROJECTION = re.compile(r"(^|\.)(down_proj|w2|o_proj|out_proj|c_proj|fc2|dense)\.weight$")
"""Matrices of which every family's layers have one kind or another."""

ROPE_FACTORS = "rope_freqs.weight"

TensorShapes = Mapping[str, tuple[int, ...]]
"""Shapes of tensors by name."""

MAX_NAMED = 4
"""Tensors that an error message names before it counts the rest."""


class WeightLoader:
    """Hands out a checkpoint's weights by their Hugging Face names, in the form that operators want.

    rename: maps the checkpoint's names to those of the family; None drops a tensor (the vision tower
    of a model of which only the text part runs). packed: matrices that were packed before.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        ops: OpTable,
        load: LoadConfig,
        rename: Callable[[str], str | None] | None = None,
        packed: PackedWeights | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._ops = ops
        self._load = load
        self._packed = packed
        self._names: dict[str, str] = {}
        for name in checkpoint.names():
            own = rename(name) if rename else name
            if own is not None:
                self._names[own] = name

    def renamed(self, rename: Callable[[str], str | None]) -> WeightLoader:
        """The same checkpoint under other names."""
        return WeightLoader(self._checkpoint, self._ops, self._load, rename, self._packed)

    def rearranged(
        self, sources: Mapping[str, Source], unused: re.Pattern[str] | None = None
    ) -> WeightLoader:
        """The same checkpoint with tensors renamed, reordered, split or transposed.

        unused: tensors that checkpoints hold though nobody needs them.
        """
        rearranged = RearrangedCheckpoint(self._checkpoint, sources, unused)
        return WeightLoader(rearranged, self._ops, self._load, packed=self._packed)

    def prefix(self, prefixes: Sequence[str], name: str) -> str:
        """Which prefix of ``name`` the checkpoint uses; the first one if it lacks that tensor."""
        return next((p for p in prefixes if self.has(p + name)), prefixes[0])

    def has(self, name: str) -> bool:
        """True if the checkpoint holds this tensor."""
        return name in self._names

    def raw(self, name: str) -> RawTensor:
        """The tensor as the file holds it. Raises CheckpointError if it is missing."""
        if name not in self._names:
            raise CheckpointError(
                f"{self._checkpoint.path} has no tensor {name}; the file is incomplete"
            )
        return self._checkpoint.get(self._names[name])

    def check(
        self,
        required: TensorShapes,
        optional: TensorShapes | None = None,
    ) -> None:
        """Compare the whole checkpoint with the shapes that the configuration implies.

        Raises one CheckpointError that names missing tensors, wrong shapes and tensors nobody reads.
        """
        optional = optional or {}
        problems: list[str] = []
        missing = [name for name in required if name not in self._names]
        if missing:
            problems.append(f"missing: {_enumerate(missing)}")
        wrong = [
            f"{name} is {list(self.raw(name).shape)}, expected {list(shape)}"
            for name, shape in {**optional, **required}.items()
            if name in self._names and tuple(self.raw(name).shape) != tuple(shape)
        ]
        if wrong:
            problems.append(f"wrong shape: {_enumerate(wrong)}")
        unused = [
            name
            for name in self._names
            if name not in required and name not in optional and not COMPUTED.search(name)
        ]
        if unused:
            problems.append(f"not part of this architecture: {_enumerate(unused)}")
        if problems:
            raise CheckpointError(
                f"{self._checkpoint.path} does not fit its configuration; {'; '.join(problems)}; "
                "download it again, or check that its architecture is named correctly"
            )

    def linear(self, *names: str, precise: bool = False, shared: bool = False) -> Weight:
        """One packed matrix out of the rows of several (q, k and v, for example).

        Providers pack with all their threads, so weights are loaded one after another.

        precise: keep at least 8 bits when quantising (embeddings and the output matrix), and leave the
            matrix to a provider that does not round its products.
        shared: operators other than Linear use the matrix.
        """
        key = "+".join(self._names.get(name, name) for name in names)
        if precise:
            key += " (precise)"
        only_linear = not (precise or shared)
        kept = self._packed.get(key) if self._packed else None
        if kept is not None and (not only_linear or self._ops.stands(kept)):
            return kept
        raw = [self._convert(self.raw(name), precise) for name in names]
        weight = self._ops.pack(raw, only_linear=only_linear)
        self._checkpoint.drop_pages()
        if self._packed:
            self._packed.add(key, weight)
        return weight

    def vector(self, *names: str) -> torch.Tensor:
        """fp32 [total width] of one or more vectors, one after another."""
        parts = [dequantize(self.raw(name)).flatten() for name in names]
        return torch.cat(parts).contiguous()

    def bias(self, *names: str) -> torch.Tensor:
        """The bias of ``linear`` with as many matrices."""
        return self.vector(*names)

    def norm(self, name: str, offset: float = 0.0) -> torch.Tensor:
        """A norm's weight, fp32; ``offset`` (1 for Gemma) is added unless the file did so already."""
        weight = self.vector(name)
        return weight if self._checkpoint.norm_offset_applied else weight + offset

    def rope_factors(self, rotary_dim: int) -> torch.Tensor | None:
        """The divisors of rope's frequencies that GGUF files of Llama 3.1 bring, fp32 [rotary_dim / 2].

        Raises CheckpointError if there are not as many of them as frequencies.
        """
        if not self.has(ROPE_FACTORS):
            return None
        shape, expected = self.raw(ROPE_FACTORS).shape, (rotary_dim // 2,)
        if shape != expected:
            raise CheckpointError(
                f"{self._checkpoint.path}: {ROPE_FACTORS} is {list(shape)}, expected {list(expected)}; "
                "the file is damaged"
            )
        return self.vector(ROPE_FACTORS)

    def _convert(self, raw: RawTensor, precise: bool) -> RawTensor:
        """The tensor after ``dtype`` and ``quantization`` of the load configuration."""
        if self._load.quantization is not None and quantisable(raw):
            return quantise(raw, "int8" if precise else self._load.quantization)
        if self._load.dtype == "auto" or raw.format not in ("F32", "F16", "BF16"):
            return raw
        name, dtype = DTYPES[self._load.dtype]
        if name == raw.format:
            return raw
        values = dequantize(raw)
        converted = values.to(dtype)
        if bool(torch.isinf(converted).any()) and not bool(torch.isinf(values).any()):
            raise CheckpointError(
                f"{raw.name} overflows {self._load.dtype}; load it as bfloat16 or float32"
            )
        return RawTensor(raw.name, name, raw.shape, converted.contiguous().view(torch.uint8).flatten())


def resolve_cache_dtype(choice: CacheDType | torch.dtype, checkpoint: Checkpoint) -> torch.dtype:
    """The type of cached keys and values; "auto": fp32 for fp32 matrices, bf16 for bf16, else fp16."""
    if isinstance(choice, torch.dtype):
        return choice
    if choice != "auto":
        return torch.int8 if choice == "int8" else DTYPES[choice][1]
    # One kind of matrix stands for all; others may cost a copy to look at (see Checkpoint.get).
    down = [name for name in checkpoint.names() if LAST_PROJECTION.search(name)]
    formats = {checkpoint.get(name).format for name in down}
    if formats == {"F32"}:
        return torch.float32
    return torch.bfloat16 if formats == {"BF16"} else torch.float16


def _enumerate(items: list[str]) -> str:
    text = ", ".join(items[:MAX_NAMED])
    more = len(items) - MAX_NAMED
    return f"{text} and {more} more" if more > 0 else text
