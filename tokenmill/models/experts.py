"""The tensors of a layer of experts, as most families name and shape them."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.layers.moe import MoEWeights
from tokenmill.models.decoder import DecoderDims
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.loader import WeightLoader
from tokenmill.models.projections import Shapes
from tokenmill.ops.table import Route


@dataclass(frozen=True)
class ExpertNames:
    """Where the tensors of an expert layer are, below the layer's own prefix.

    router, experts: prefixes. gate, up, down: of one expert. shared, shared_gate: of the shared expert;
    empty if there is none.
    """

    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = ""
    shared_gate: str = ""


@dataclass(frozen=True)
class ExpertDims:
    """Sizes of an expert layer. width, shared_width: of each expert's hidden layer."""

    num_experts: int
    top_k: int
    width: int
    renormalise: bool
    shared_width: int = 0

    @classmethod
    def read(
        cls,
        config: ConfigReader,
        *,
        width_key: str,
        renormalise: bool | None = None,
        shared_width_key: str | None = None,
    ) -> ExpertDims:
        """Raises CheckpointError naming the key that is missing or absurd.

        renormalise: whether the weights of the chosen add up to 1; None reads norm_topk_prob.
        """
        # transformers writes both names, older files only one.
        count = "num_local_experts" if config.has("num_local_experts") else "num_experts"
        num_experts = config.integer(count)
        top_k = config.integer("num_experts_per_tok")
        if top_k > num_experts:
            raise config.error("num_experts_per_tok", f"is {top_k}, of only {num_experts} experts")
        return cls(
            num_experts=num_experts,
            top_k=top_k,
            width=config.integer(width_key),
            renormalise=config.flag("norm_topk_prob", False) if renormalise is None else renormalise,
            shared_width=config.integer(shared_width_key) if shared_width_key else 0,
        )


def expert_shapes(d: DecoderDims, e: ExpertDims, names: ExpertNames) -> Shapes:
    """The tensors of an expert layer, without the norm before it."""
    hidden = d.hidden_size
    shapes: Shapes = {f"{names.router}.weight": (e.num_experts, hidden)}
    prefixes = [(f"{names.experts}.{i}", e.width) for i in range(e.num_experts)]
    if names.shared:
        prefixes.append((names.shared, e.shared_width))
    for prefix, width in prefixes:
        shapes[f"{prefix}.{names.gate}.weight"] = (width, hidden)
        shapes[f"{prefix}.{names.up}.weight"] = (width, hidden)
        shapes[f"{prefix}.{names.down}.weight"] = (hidden, width)
    if names.shared_gate:
        shapes[f"{names.shared_gate}.weight"] = (1, hidden)
    return shapes


def load_experts(
    weights: WeightLoader, prefix: str, e: ExpertDims, names: ExpertNames, *, norm: str
) -> MoEWeights:
    """The expert layer whose names start with ``prefix``; norm: name of the norm before it."""
    experts = [f"{names.experts}.{i}" for i in range(e.num_experts)]
    experts += [names.shared] if names.shared else []
    routers = [f"{prefix}{names.router}.weight"]
    routers += [f"{prefix}{names.shared_gate}.weight"] if names.shared_gate else []
    return MoEWeights(
        norm=weights.norm(f"{prefix}{norm}.weight"),
        router=weights.linear(*routers, precise=True),
        gate_up=tuple(
            weights.linear(f"{prefix}{x}.{names.gate}.weight", f"{prefix}{x}.{names.up}.weight")
            for x in experts
        ),
        down=tuple(weights.linear(f"{prefix}{x}.{names.down}.weight") for x in experts),
        route=Route(
            e.num_experts,
            e.top_k,
            renormalise=e.renormalise,
            shared=1 if names.shared else 0,
            shared_gate=bool(names.shared_gate),
        ),
    )
