"""The skeleton that today's dense decoders share: embedding, layers of attention and MLP, logits.

A family's file says what is particular to it (configuration, tensor names, shapes, norms, windows) and
hands its layers to ``Decoder``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from tokenmill.cache.spec import CacheSpec
from tokenmill.engine.step import Cache, StepBuffers
from tokenmill.errors import ConfigError
from tokenmill.layers.attention import AttentionLayer, AttentionShape, AttentionWeights
from tokenmill.layers.embedding import Embedding, EmbeddingExtras, LMHead
from tokenmill.layers.mlp import MLP, MLPWeights
from tokenmill.layers.moe import MoEWeights, SparseMLP
from tokenmill.layers.rope import Rope, RopeSpec, RotaryEmbedding
from tokenmill.layers.scratch import Scratch
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.loader import TensorShapes, WeightLoader
from tokenmill.ops.table import Activation, LayerNorm, OpTable, RmsNorm

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "gelu_pytorch_tanh": "gelu_tanh",
}


class Model(Protocol):
    """What the engine needs of a model."""

    vocab_size: int
    hidden_size: int
    max_position: int

    def cache_specs(self) -> list[CacheSpec]:
        """What its layers remember, in order; most remember one thing, some none or several."""
        ...

    def forward(self, step: StepBuffers, caches: Sequence[Cache]) -> torch.Tensor:
        """fp32 [max_logits, vocab_size]; the first num_logits rows are this step's."""
        ...

    def hidden_states(self, tokens: torch.Tensor) -> torch.Tensor:
        """After a forward step, what its logits are computed from: fp32 [n, hidden_size].

        tokens: int64 [n], places in the flat batch.
        """
        ...


@dataclass(frozen=True)
class BuildContext:
    """What a family needs besides its configuration.

    max_model_len: longest text that will be served; None is the model's own limit.
    """

    ops: OpTable
    weights: WeightLoader
    max_tokens: int
    max_logits: int
    max_model_len: int | None
    cache_dtype: torch.dtype

    def with_weights(self, weights: WeightLoader) -> BuildContext:
        """The same context over another view of the weights."""
        return replace(self, weights=weights)

    def model_len(self, limit: int) -> int:
        """The longest text to prepare for. Raises ConfigError if the model can't read it."""
        if self.max_model_len is None:
            return limit
        if self.max_model_len > limit:
            raise ConfigError(
                f"max_model_len {self.max_model_len} is more than the model can read; "
                f"choose at most {limit}"
            )
        return self.max_model_len


@dataclass(frozen=True)
class DecoderDims:
    """Sizes that every decoder has."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    eps: float
    act: Activation
    tied: bool

    @property
    def q_width(self) -> int:
        """Width of all queries of a token."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all keys (or values) of a token."""
        return self.num_kv_heads * self.head_dim

    @classmethod
    def read(
        cls,
        config: ConfigReader,
        *,
        act_key: str = "hidden_act",
        default_act: str = "silu",
        default_eps: float = 1e-6,
        default_head_dim: int | None = None,
        default_tied: bool = False,
    ) -> DecoderDims:
        """The sizes, validated. Raises CheckpointError naming the key that is wrong."""
        hidden = config.integer("hidden_size")
        heads = config.integer("num_attention_heads")
        kv_heads = config.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise config.error(
                "num_key_value_heads", f"is {kv_heads}, which does not divide {heads} heads"
            )
        if not config.has("head_dim") and default_head_dim is None and hidden % heads:
            raise config.error(
                "num_attention_heads", f"is {heads}, which does not divide hidden_size {hidden}"
            )
        head_dim = config.integer("head_dim", default_head_dim or hidden // heads)
        if head_dim % 2:
            raise config.error("head_dim", f"is {head_dim}, but rotation needs an even number")
        act = config.text(act_key, default_act)
        if act not in ACTIVATIONS:
            raise config.error(act_key, f"is {act!r}, not one of {', '.join(ACTIVATIONS)}")
        return cls(
            vocab_size=config.integer("vocab_size"),
            hidden_size=hidden,
            intermediate_size=config.integer("intermediate_size"),
            num_layers=config.integer("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            max_position=config.integer("max_position_embeddings"),
            eps=config.number("rms_norm_eps", default_eps),
            act=ACTIVATIONS[act],
            tied=config.flag("tie_word_embeddings", default_tied),
        )

    def attention_shape(
        self,
        rope: RopeSpec | None,
        *,
        window: int = 0,
        scale: float | None = None,
        softcap: float = 0.0,
    ) -> AttentionShape:
        """The shape of an attention layer; scale is 1 / sqrt(head_dim) unless given."""
        return AttentionShape(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            rotary_dim=rope.rotary_dim if rope else 0,
            scale=self.head_dim**-0.5 if scale is None else scale,
            window=window,
            softcap=softcap,
        )


def layer_prefix(index: int) -> str:
    """Where the names of a layer's tensors start."""
    return f"model.layers.{index}."


def check_weights(
    weights: WeightLoader,
    dims: DecoderDims,
    layer_shapes: TensorShapes | Callable[[int], TensorShapes],
    other_shapes: TensorShapes | None = None,
) -> None:
    """Check all tensors of a model whose layers each hold ``layer_shapes``, or what it says of each."""
    matrix = (dims.vocab_size, dims.hidden_size)
    required: dict[str, tuple[int, ...]] = {EMBEDDING: matrix, FINAL_NORM: (dims.hidden_size,)}
    required |= other_shapes or {}
    for index in range(dims.num_layers):
        shapes = layer_shapes(index) if callable(layer_shapes) else layer_shapes
        required |= {layer_prefix(index) + name: shape for name, shape in shapes.items()}
    if dims.tied:
        weights.check(required, {LM_HEAD: matrix})
    else:
        weights.check({**required, LM_HEAD: matrix})


@dataclass(frozen=True)
class LayerStyle:
    """How a family's layers are put together.

    layer_norm: norms are LayerNorms, not RMSNorms. parallel: attention and MLP both read the residual
    stream as it enters the layer (GPT-J). branch_scale: multiplies what each adds to it (Granite).
    """

    layer_norm: bool = False
    parallel: bool = False
    branch_scale: float = 1.0


@dataclass(frozen=True)
class LayerContext:
    """What a branch needs to be bound, besides its plan.

    ropes: the outputs of the model's rotary embeddings by name, fp32 [max_tokens, rotary_dim].
    model_len: the longest text that will be served.
    """

    ops: OpTable
    scratch: Scratch
    dims: DecoderDims
    style: LayerStyle
    cache_dtype: torch.dtype
    ropes: Mapping[str, torch.Tensor]
    model_len: int


class Branch(Protocol):
    """A part of a layer that reads the residual stream and adds to it."""

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """What it remembers."""
        ...

    def read(self, hidden: torch.Tensor, step: StepBuffers) -> None:
        """Take what is needed from hidden, which is free to change then."""
        ...

    def add(self, hidden: torch.Tensor, step: StepBuffers, caches: Sequence[Any]) -> None:
        """Add to hidden what follows from what was read. caches: one for each of ``cache_specs``."""
        ...


class BranchPlan(Protocol):
    """A branch with its weights, ready to be bound."""

    def bind(self, context: LayerContext) -> Branch:
        """The branch; raises LookupError if no provider runs one of its operators."""
        ...


@dataclass(frozen=True)
class AttentionPlan:
    """Attention. rope: which rotary embedding it uses; None where the shape rotates nothing."""

    shape: AttentionShape
    weights: AttentionWeights
    rope: str | None = "all"

    def bind(self, context: LayerContext) -> Branch:
        """The branch. A window that covers every text is none."""
        idle = self.shape.window >= context.model_len
        # Nobody reads the one column that layers that rotate nothing are handed.
        rope = context.scratch.get("rope", 1) if self.rope is None else context.ropes[self.rope]
        return AttentionLayer(
            context.ops,
            replace(self.shape, window=0) if idle else self.shape,
            self.weights,
            context.scratch,
            rope,
            eps=context.dims.eps,
            cache_dtype=context.cache_dtype,
            layer_norm=context.style.layer_norm,
            scale=context.style.branch_scale,
        )


@dataclass(frozen=True)
class MLPPlan:
    """A feed-forward layer, with experts or without."""

    weights: MLPWeights | MoEWeights

    def bind(self, context: LayerContext) -> Branch:
        """The branch."""
        act, eps = context.dims.act, context.dims.eps
        if isinstance(self.weights, MoEWeights):
            return SparseMLP(context.ops, self.weights, context.scratch, act=act, eps=eps)
        return MLP(
            context.ops,
            self.weights,
            context.scratch,
            act=act,
            eps=eps,
            layer_norm=context.style.layer_norm,
            scale=context.style.branch_scale,
        )


class LayerPlan(Protocol):
    """A layer, as the stages that change the residual stream one after another.

    The branches of a stage all read the stream as it enters the stage.
    """

    def stages(self, style: LayerStyle) -> Sequence[Sequence[BranchPlan]]:
        """The stages in order."""
        ...


@dataclass(frozen=True)
class AttentionMLP:
    """The usual layer: attention, then (or beside it) the MLP."""

    shape: AttentionShape
    attention: AttentionWeights
    mlp: MLPWeights | MoEWeights
    rope: str | None = "all"

    def stages(self, style: LayerStyle) -> Sequence[Sequence[BranchPlan]]:
        """The stages in order."""
        attention = AttentionPlan(self.shape, self.attention, self.rope)
        mlp = MLPPlan(self.mlp)
        return [[attention, mlp]] if style.parallel else [[attention], [mlp]]


@dataclass(frozen=True)
class MixedLayer:
    """A layer of other parts: each of ``parts`` is a stage, whose branches read the same stream."""

    parts: Sequence[Sequence[BranchPlan]]

    def stages(self, style: LayerStyle) -> Sequence[Sequence[BranchPlan]]:
        """The stages in order."""
        return self.parts


class Decoder:
    """A decoder-only language model; see ``Model``.

    ropes: the rotary embeddings that layers name. final_norm: fp32 [hidden_size].
    max_position: longest text that the model can read. embed_scale: multiplies embeddings (Gemma).
    logit_softcap: 0 is none. logit_scale: multiplies logits. final_norm_bias, logit_bias: of LayerNorm
    models. extras: of the embedding. A window that no served text outgrows is dropped: such a layer
    remembers everything anyway, and equal layers share one group of the cache.
    """

    def __init__(
        self,
        context: BuildContext,
        dims: DecoderDims,
        *,
        layers: Sequence[LayerPlan],
        ropes: Mapping[str, Rope],
        final_norm: torch.Tensor,
        max_position: int,
        embed_scale: float = 1.0,
        logit_softcap: float = 0.0,
        logit_scale: float = 1.0,
        style: LayerStyle | None = None,
        final_norm_bias: torch.Tensor | None = None,
        logit_bias: torch.Tensor | None = None,
        extras: EmbeddingExtras | None = None,
    ) -> None:
        style = style or LayerStyle()
        self.vocab_size = dims.vocab_size
        self.hidden_size = dims.hidden_size
        self.max_position = max_position
        scratch = Scratch(context.max_tokens)
        embedding = context.weights.linear(EMBEDDING, precise=True)
        head = embedding if dims.tied else context.weights.linear(LM_HEAD, precise=True)
        self._embedding = Embedding(
            context.ops, embedding, scratch, embed_scale, extras=extras, eps=dims.eps
        )
        self._rotary = {
            name: RotaryEmbedding(context.ops, rope, scratch, name) for name, rope in ropes.items()
        }
        room = LayerContext(
            ops=context.ops,
            scratch=scratch,
            dims=dims,
            style=style,
            cache_dtype=context.cache_dtype,
            ropes={name: rotary.out for name, rotary in self._rotary.items()},
            model_len=context.model_len(max_position),
        )
        self._stages = [
            [branch.bind(room) for branch in stage] for layer in layers for stage in layer.stages(style)
        ]
        self._head = LMHead(
            context.ops,
            head,
            scratch,
            norm=final_norm,
            eps=dims.eps,
            max_logits=context.max_logits,
            softcap=logit_softcap,
            bias=logit_bias,
            norm_bias=final_norm_bias,
            layer_norm=style.layer_norm,
            scale=logit_scale,
        )
        # The last layer leaves the residual stream here, and the logits are read from it.
        self._residual = scratch.get("hidden", dims.hidden_size)
        self._final_norm = context.ops.bind(
            LayerNorm(final_norm, dims.eps, final_norm_bias)
            if style.layer_norm
            else RmsNorm(final_norm, dims.eps)
        )

    def cache_specs(self) -> list[CacheSpec]:
        """What the branches of all layers remember, in order."""
        return [spec for stage in self._stages for branch in stage for spec in branch.cache_specs]

    def forward(self, step: StepBuffers, caches: Sequence[Cache]) -> torch.Tensor:
        """fp32 [max_logits, vocab_size]; the first num_logits rows are this step's."""
        hidden = self._embedding.forward(step)
        for rotary in self._rotary.values():
            rotary.forward(step)
        remaining = iter(caches)
        for stage in self._stages:
            for branch in stage:
                branch.read(hidden, step)
            for branch in stage:
                branch.add(hidden, step, [next(remaining) for _ in branch.cache_specs])
        return self._head.forward(hidden, step)

    def hidden_states(self, tokens: torch.Tensor) -> torch.Tensor:
        """After a forward step, its final normalised hidden states: fp32 [len(tokens), hidden_size].

        tokens: int64 [n], places in the flat batch. Not part of a recorded step, since few need it.
        """
        residual = self._residual.index_select(0, tokens)
        out = torch.empty_like(residual)
        self._final_norm(torch.tensor([tokens.numel()], dtype=torch.int32), residual, out)
        return out
