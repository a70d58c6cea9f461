"""The meaning of ``Route``: which experts a token goes to."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tokenmill.ops.table import Route


def bind_route(p: Route) -> Callable[..., None]:
    """The operator, ready to be called; one token at a time, so that tokens do not touch each other."""

    def route(rows: Tensor, logits: Tensor, ids: Tensor, weights: Tensor) -> None:
        for t in range(int(rows.item())):
            chosen, scores = _choose(p, logits[t, : p.num_experts].clone())
            ids[t, : p.top_k], weights[t, : p.top_k] = chosen, scores * p.scale
            shared = slice(p.top_k, p.top_k + p.shared)
            ids[t, shared] = torch.arange(p.num_experts, p.num_experts + p.shared)
            gates = torch.sigmoid(logits[t, p.num_experts :].clone()) if p.shared_gate else 1.0
            weights[t, shared] = gates

    return route


def _choose(p: Route, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Ids, ascending, and weights of the chosen experts, before scaling."""
    match p.scoring:
        case "softmax":
            scores = torch.softmax(logits, dim=0)
        case "sigmoid":
            scores = torch.sigmoid(logits)
        case "softmax_of_chosen":
            scores = logits
    choice = scores if p.bias is None else scores + p.bias
    if p.num_groups > 1:
        groups = choice.view(p.num_groups, -1)
        best = groups.topk(min(2 if p.group_sum else 1, groups.shape[1]), dim=1).values.sum(dim=1)
        kept = torch.zeros(p.num_groups, dtype=torch.bool)
        kept[best.sort(descending=True, stable=True).indices[: p.top_groups]] = True
        choice = torch.where(kept.unsqueeze(1), groups, float("-inf")).flatten()
    ids = choice.sort(descending=True, stable=True).indices[: p.top_k].sort().values
    weights = scores[ids]
    if p.scoring == "softmax_of_chosen":
        weights = torch.softmax(weights, dim=0)
    return ids, weights / weights.sum() if p.renormalise else weights
