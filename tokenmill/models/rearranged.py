"""Checkpoints that lay their tensors out in another way, seen as the layout that the layers want.

Old families fuse q, k and v head by head, store matrices transposed (GPT-2), or expect rotary pairs to
be neighbours. All of that is an order of rows, so it is settled while loading and costs nothing later.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tokenmill.errors import CheckpointError
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.ggml_formats import FORMATS
from tokenmill.weights.tensor import RawTensor


@dataclass(frozen=True)
class Source:
    """Where a tensor comes from.

    name: in the checkpoint. rows: int64, which rows (of a vector: elements) to take, in which order;
    None is all. transposed: the checkpoint holds [in, out].
    """

    name: str
    rows: torch.Tensor | None = None
    transposed: bool = False

    def apply(self, raw: RawTensor) -> RawTensor:
        """The tensor as wanted. Raises CheckpointError if the file's tensor does not allow it."""
        if self.transposed:
            raw = _transposed(raw)
        if self.rows is None:
            return raw
        if not raw.shape or raw.shape[0] <= int(self.rows.max()):
            raise CheckpointError(
                f"{raw.name} is {list(raw.shape)}, but row {int(self.rows.max())} of it is needed; "
                "the file does not fit its configuration"
            )
        if len(raw.shape) == 1 and FORMATS[raw.format].block_size != 1:
            raise CheckpointError(
                f"tensor {raw.name} is a vector of quantised format {raw.format}; not supported"
            )
        data = raw.data.view(raw.shape[0], -1)[self.rows].reshape(-1)
        return RawTensor(raw.name, raw.format, (self.rows.numel(), *raw.shape[1:]), data)


def _transposed(raw: RawTensor) -> RawTensor:
    block = FORMATS[raw.format]
    if len(raw.shape) != 2 or block.block_size != 1:
        raise CheckpointError(f"tensor {raw.name} is no plain matrix and can't be transposed")
    data = raw.data.view(*raw.shape, -1).transpose(0, 1).reshape(-1)
    return RawTensor(raw.name, raw.format, (raw.shape[1], raw.shape[0]), data)


class RearrangedCheckpoint:
    """A checkpoint, some of whose tensors appear under other names and in another order.

    Tensors that no source mentions keep their names, unless ``unused`` matches them; a source that the
    checkpoint lacks is left out.
    """

    def __init__(
        self, checkpoint: Checkpoint, sources: Mapping[str, Source], unused: re.Pattern[str] | None
    ) -> None:
        self._checkpoint = checkpoint
        self.path: Path = checkpoint.path
        self.kind: Literal["safetensors", "gguf"] = checkpoint.kind
        self.config: dict[str, Any] = checkpoint.config
        self.generation_config: dict[str, Any] = checkpoint.generation_config
        self.metadata: dict[str, Any] = checkpoint.metadata
        self.norm_offset_applied: bool = checkpoint.norm_offset_applied
        present, used = set(checkpoint.names()), {source.name for source in sources.values()}
        self._sources = {
            name: Source(name)
            for name in present - used
            if unused is None or unused.search(name) is None
        }
        self._sources |= {name: s for name, s in sources.items() if s.name in present}

    def names(self) -> Collection[str]:
        """Names after the rearrangement."""
        return self._sources.keys()

    def get(self, name: str) -> RawTensor:
        """A tensor, copied if its rows are taken in another order. Raises CheckpointError if absent."""
        if name not in self._sources:
            raise CheckpointError(f"{self.path} has no tensor {name}; the file is incomplete")
        source = self._sources[name]
        return source.apply(self._checkpoint.get(source.name))

    def close(self) -> None:
        """Gives the mapping up."""
        self._checkpoint.close()

    def drop_pages(self) -> None:
        """Lets the system take back the memory of what was read."""
        self._checkpoint.drop_pages()


def pairs_apart(heads: int, head_dim: int, rotary_dim: int) -> torch.Tensor:
    """Rows of q or k so that rotary pairs (2i, 2i + 1) become (i, i + rotary_dim / 2).

    A score is a sum over coordinates, so giving q and k the same order changes nothing else.
    """
    rotated = torch.arange(rotary_dim).view(-1, 2).T.reshape(-1)
    head = torch.cat((rotated, torch.arange(rotary_dim, head_dim)))
    return (torch.arange(heads).unsqueeze(1) * head_dim + head).reshape(-1)


def fused_rows(groups: int, parts: tuple[int, ...], head_dim: int) -> tuple[torch.Tensor, ...]:
    """Rows of each part of a matrix that repeats, ``groups`` times, ``parts`` heads of each kind.

    GPT-NeoX and Bloom fuse (1, 1, 1) for every head, Falcon's newer form (queries, 1, 1) for every key.
    """
    rows = torch.arange(groups * sum(parts) * head_dim).view(groups, sum(parts) * head_dim)
    widths = [part * head_dim for part in parts]
    return tuple(piece.reshape(-1) for piece in torch.split(rows, widths, dim=1))
