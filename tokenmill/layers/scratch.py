"""The buffers that activations pass through, shared by all layers of a model."""

from __future__ import annotations

import torch


class Scratch:
    """Hands out fp32 buffers [max_tokens, width] by name.

    Layers run one after another, so each asks for the same names and gets the same memory: the
    activations of a model take the room of one layer. A buffer's address never changes, so native
    programs can be recorded over it.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._buffers: dict[tuple[str, int, int], torch.Tensor] = {}

    def get(self, name: str, width: int, rows: int | None = None) -> torch.Tensor:
        """The buffer of that name and width, [rows or max_tokens, width]; zeros when new."""
        key = (name, width, self.max_tokens if rows is None else rows)
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(key[2], width)
        return self._buffers[key]

    @property
    def nbytes(self) -> int:
        """Memory of all buffers handed out."""
        return sum(buffer.nbytes for buffer in self._buffers.values())
