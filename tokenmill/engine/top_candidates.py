"""The largest logits of each row, without sorting or scanning the vocabulary element by element.

torch's topk compares one element at a time. Its maximum over a dimension is vectorised and
about ten times faster, so the row is first reduced to the maxima of short pieces: the k largest
elements lie in the k pieces with the largest maxima.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _piece_for(k: int) -> int:
    return 64 if k <= 128 else 32


def top_candidates(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values (descending) and indices of each row's k largest elements, both [rows, min(k, vocab)].

    What a row gets depends on that row and k only, also where logits are equal.
    """
    rows, vocab = logits.shape
    size = _piece_for(k)
    pieces = vocab // size
    if pieces <= 2 * k:
        values, indices = logits.topk(min(k, vocab), dim=1)
        return values, indices
    end = pieces * size
    split = logits[:, :end].view(rows, pieces, size)
    chosen = split.amax(dim=2).topk(k, dim=1).indices
    index = (chosen.unsqueeze(2) * size + torch.arange(size)).flatten(1)
    if end < vocab:
        tail = torch.arange(end, vocab).expand(rows, -1)
        index = torch.cat((index, tail), dim=1)
    values, inside = logits.gather(1, index).topk(k, dim=1)
    return values, index.gather(1, inside)
