"""Gemma 3, text: Gemma 2 with query/key norms, five local layers to each global one, and two ropes.

arXiv:2503.19786. Local layers rotate by their own base frequency; only global ones are scaled. Of a
multimodal checkpoint (``Gemma3ForConditionalGeneration``) the text part runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.layers.rope import RopeSpec, rope_frequencies
from tokenmill.models.decoder import (
    FINAL_NORM,
    AttentionMLP,
    BuildContext,
    Decoder,
    DecoderDims,
    check_weights,
    layer_prefix,
)
from tokenmill.models.gemma2 import (
    ATTENTION_NORM,
    MLP_NORM,
    NO_CAP,
    NORM_OFFSET,
    POST_ATTENTION_NORM,
    POST_MLP_NORM,
    gemma_dims,
)
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.projections import (
    Shapes,
    attention_shapes,
    load_attention,
    load_mlp,
    mlp_shapes,
    norm_shapes,
)
from tokenmill.models.rope_config import read_rope

GLOBAL, LOCAL = "full_attention", "sliding_attention"
GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0

MULTIMODAL = "Gemma3ForConditionalGeneration"
TEXT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
}
"""What multimodal configurations leave out of their text section."""

TEXT_PREFIXES = {"language_model.model.": "model.", "model.language_model.": "model."}
OTHER_PARTS = ("vision_tower.", "multi_modal_projector.")


@dataclass(frozen=True)
class Gemma3Config:
    """windows: for each layer, how many tokens a token sees; 0 for all. scale: of attention scores."""

    dims: DecoderDims
    global_rope: RopeSpec
    local_rope: RopeSpec
    scale: float
    windows: tuple[int, ...]
    attention_bias: bool
    attention_softcap: float
    logit_softcap: float

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Gemma3Config:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        if MULTIMODAL in config.get("architectures", ()):
            read = read.section("text_config").merged(TEXT_DEFAULTS)
        dims = gemma_dims(read)
        every = read.integer("sliding_window_pattern", 6)
        return cls(
            dims=dims,
            global_rope=read_rope(
                read,
                head_dim=dims.head_dim,
                max_position=dims.max_position,
                layer_type=GLOBAL,
                default_theta=GLOBAL_THETA,
            ),
            local_rope=_local_rope(read, dims),
            scale=read.number("query_pre_attn_scalar", dims.head_dim) ** -0.5,
            windows=read.windows(dims.num_layers, is_sliding=lambda index: (index + 1) % every != 0),
            attention_bias=read.flag("attention_bias", False),
            attention_softcap=read.number("attn_logit_softcapping", NO_CAP),
            logit_softcap=read.number("final_logit_softcapping", NO_CAP),
        )

    def layer_shapes(self) -> Shapes:
        """The tensors of one layer."""
        bias = self.attention_bias
        return (
            norm_shapes(self.dims, ATTENTION_NORM, POST_ATTENTION_NORM, MLP_NORM, POST_MLP_NORM)
            | attention_shapes(self.dims, qkv_bias=bias, out_bias=bias, qk_norm=True)
            | mlp_shapes(self.dims)
        )


def _local_rope(read: ConfigReader, dims: DecoderDims) -> RopeSpec:
    if read.has("rope_parameters") and read.section("rope_parameters").has(LOCAL):
        return read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position, layer_type=LOCAL)
    # The older style: a base frequency of its own, and no scaling.
    theta = read.number("rope_local_base_freq", LOCAL_THETA, minimum=1.0)
    return RopeSpec("default", theta, rotary_dim=dims.head_dim, max_position=dims.max_position)


def _text_name(name: str) -> str | None:
    """The text model's name of a multimodal checkpoint's tensor; None for other parts."""
    if name.removeprefix("model.").startswith(OTHER_PARTS):
        return None
    for prefix, own in TEXT_PREFIXES.items():
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return name.removeprefix("language_model.")


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Gemma 3 checkpoint; errors as ``build_model`` says."""
    c = Gemma3Config.from_hf(config)
    if MULTIMODAL in config.get("architectures", ()):
        context = context.with_weights(context.weights.renamed(_text_name))
    weights = context.weights
    model_len = context.model_len(c.global_rope.position_limit)
    check_weights(weights, c.dims, c.layer_shapes())

    def layer(index: int) -> AttentionMLP:
        prefix = layer_prefix(index)
        window = c.windows[index]
        return AttentionMLP(
            shape=c.dims.attention_shape(
                c.local_rope if window else c.global_rope,
                window=window,
                scale=c.scale,
                softcap=c.attention_softcap,
            ),
            attention=load_attention(
                weights,
                prefix,
                norm=ATTENTION_NORM,
                post_norm=POST_ATTENTION_NORM,
                qkv_bias=c.attention_bias,
                out_bias=c.attention_bias,
                qk_norm=True,
                norm_offset=NORM_OFFSET,
            ),
            mlp=load_mlp(
                weights, prefix, norm=MLP_NORM, post_norm=POST_MLP_NORM, norm_offset=NORM_OFFSET
            ),
            rope=LOCAL if window else GLOBAL,
        )

    return Decoder(
        context,
        c.dims,
        ropes={
            GLOBAL: rope_frequencies(c.global_rope, model_len),
            LOCAL: rope_frequencies(c.local_rope, model_len),
        },
        layers=[layer(index) for index in range(c.dims.num_layers)],
        final_norm=weights.norm(FINAL_NORM, NORM_OFFSET),
        max_position=c.global_rope.position_limit,
        embed_scale=c.dims.hidden_size**0.5,
        logit_softcap=c.logit_softcap,
    )
