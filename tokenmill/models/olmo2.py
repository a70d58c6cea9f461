"""OLMo 2 and 3: norms after each branch only, and one RMSNorm over all of a token's queries or keys.

arXiv:2501.00656. OLMo 3 adds sliding windows in three of four layers, whose rotary embedding is not
scaled where that of the other layers is.
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

POST_ATTENTION_NORM = "post_attention_layernorm"
POST_MLP_NORM = "post_feedforward_layernorm"
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Olmo2Config:
    """windows: for each layer, how many tokens a token sees; 0 for all.

    full_rope, sliding_rope: of the layers that see all, and of the others.
    """

    dims: DecoderDims
    full_rope: RopeSpec
    sliding_rope: RopeSpec
    attention_bias: bool
    windows: tuple[int, ...]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Olmo2Config:
        """Raises CheckpointError naming the key that is missing or absurd."""
        read = ConfigReader(config)
        dims = DecoderDims.read(read, default_eps=1e-5)
        slides = read.has("sliding_window")
        full = _rope(read, dims, FULL)
        return cls(
            dims=dims,
            full_rope=full,
            sliding_rope=_sliding_rope(read, dims, full) if slides else full,
            attention_bias=read.flag("attention_bias", False),
            windows=read.windows(
                dims.num_layers, is_sliding=lambda index: slides and (index + 1) % 4 != 0
            ),
        )

    def layer_shapes(self) -> Shapes:
        """The tensors of one layer."""
        bias = self.attention_bias
        return (
            norm_shapes(self.dims, POST_ATTENTION_NORM, POST_MLP_NORM)
            | attention_shapes(self.dims, qkv_bias=bias, out_bias=bias, qk_norm=True, whole_norm=True)
            | mlp_shapes(self.dims)
        )


def _rope(read: ConfigReader, dims: DecoderDims, layer_type: str) -> RopeSpec:
    return read_rope(
        read, head_dim=dims.head_dim, max_position=dims.max_position, layer_type=layer_type
    )


def _sliding_rope(read: ConfigReader, dims: DecoderDims, full: RopeSpec) -> RopeSpec:
    if read.has("rope_parameters") and read.section("rope_parameters").has(SLIDING):
        return _rope(read, dims, SLIDING)
    # The older style scales the layers that see everything, and no others.
    return RopeSpec("default", full.theta, full.rotary_dim, full.max_position)


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of an OLMo 2 or 3 checkpoint; errors as ``build_model`` says."""
    c = Olmo2Config.from_hf(config)
    weights = context.weights
    model_len = context.model_len(c.full_rope.position_limit)
    check_weights(weights, c.dims, c.layer_shapes())

    def layer(index: int) -> AttentionMLP:
        prefix = layer_prefix(index)
        window = c.windows[index]
        return AttentionMLP(
            shape=c.dims.attention_shape(c.sliding_rope if window else c.full_rope, window=window),
            attention=load_attention(
                weights,
                prefix,
                norm=None,
                post_norm=POST_ATTENTION_NORM,
                qkv_bias=c.attention_bias,
                out_bias=c.attention_bias,
                qk_norm=True,
                whole_norm=True,
            ),
            mlp=load_mlp(weights, prefix, norm=None, post_norm=POST_MLP_NORM),
            rope=SLIDING if window else FULL,
        )

    ropes = {FULL: rope_frequencies(c.full_rope, model_len)}
    if any(c.windows):
        ropes[SLIDING] = rope_frequencies(c.sliding_rope, model_len)
    return Decoder(
        context,
        c.dims,
        ropes=ropes,
        layers=[layer(index) for index in range(c.dims.num_layers)],
        final_norm=weights.norm(FINAL_NORM),
        max_position=c.full_rope.position_limit,
    )
