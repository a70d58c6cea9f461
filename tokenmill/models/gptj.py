"""GPT-J: the first model with attention beside the MLP; rotary pairs are neighbours.

Wang and Komatsuzaki, "GPT-J-6B", 2021.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenmill.layers.rope import RopeSpec
from tokenmill.models.decoder import BuildContext, Decoder, DecoderDims
from tokenmill.models.gpt2 import ALIASES
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.layer_norm_decoder import (
    Layout,
    build_layer_norm_decoder,
    layer_sources,
    top_sources,
)
from tokenmill.models.projections import (
    ATTENTION_NORM,
    DOWN,
    GATE_UP,
    OUT,
    QKV,
)
from tokenmill.models.rearranged import Source, pairs_apart

THETA = 10000.0
MASKS = re.compile(r"\.attn\.(masked_)?bias$")
"""Old checkpoints hold the causal mask."""


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a GPT-J checkpoint; errors as ``build_model`` says."""
    read = ConfigReader(config, aliases=ALIASES)
    dims = DecoderDims.read(
        read.merged({"intermediate_size": 4 * read.integer("hidden_size")}),
        default_act="gelu_new",
        default_eps=1e-5,
    )
    rotary_dim = read.integer("rotary_dim", dims.head_dim)
    if rotary_dim > dims.head_dim or rotary_dim % 2:
        raise read.error("rotary_dim", f"is {rotary_dim}, not an even share of {dims.head_dim}")
    rows = pairs_apart(dims.num_heads, dims.head_dim, rotary_dim)
    orders = zip(QKV, ("attn.q_proj", "attn.k_proj", "attn.v_proj"), (rows, rows, None), strict=True)
    sources = top_sources("transformer.wte", "transformer.ln_f")
    sources |= layer_sources(
        dims.num_layers,
        "transformer.h.",
        {
            ATTENTION_NORM: Source("ln_1"),
            OUT: Source("attn.out_proj"),
            GATE_UP[1]: Source("mlp.fc_in"),
            DOWN: Source("mlp.fc_out"),
        }
        | {own: Source(name, order) for own, name, order in orders},
    )
    layout = Layout(
        rope=RopeSpec("default", THETA, rotary_dim, dims.max_position),
        parallel=True,
        mlp_norm=ATTENTION_NORM,
        qkv_bias=False,
        out_bias=False,
        logit_bias=True,
    )
    weights = context.weights.rearranged(sources, unused=MASKS)
    return build_layer_norm_decoder(context.with_weights(weights), dims, layout)
