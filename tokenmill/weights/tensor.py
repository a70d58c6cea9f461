"""A tensor as the checkpoint holds it: bytes, a format and a shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RawTensor:
    """Bytes of one tensor, not yet decoded; usually a view of a mapped file.

    format: a GGML type name ("F32", "F16", "BF16", "Q4_0", "Q4_K", ...), whatever file it came from.
    shape: row-major logical shape, as Hugging Face has it ([out_features, in_features] for a matrix).
    data: uint8, one-dimensional, contiguous; rows of a matrix follow one another.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: torch.Tensor

    @property
    def num_rows(self) -> int:
        """Rows of the matrix (1 for a vector)."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.data.numel() // max(self.num_rows, 1)

    def rows(self, start: int, stop: int) -> RawTensor:
        """Rows start to stop of a matrix, as a view (no copy)."""
        b = self.row_bytes
        return RawTensor(
            self.name, self.format, (stop - start, *self.shape[1:]), self.data[start * b : stop * b]
        )

    def permute_rows(self, index: torch.Tensor) -> RawTensor:
        """The same matrix with its rows in another order (int64 index [num_rows]); copies."""
        data = self.data.view(self.num_rows, self.row_bytes)[index].reshape(-1)
        return RawTensor(self.name, self.format, self.shape, data)
