"""GPT-NeoX and Pythia: attention beside the MLP, q, k and v fused head by head, partial rotation.

arXiv:2204.06745 and arXiv:2304.01373.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenmill.models.decoder import BuildContext, Decoder, DecoderDims
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
    MLP_NORM,
    OUT,
    QKV,
)
from tokenmill.models.rearranged import Source, fused_rows
from tokenmill.models.rope_config import read_rope

ALIASES = {
    "rms_norm_eps": "layer_norm_eps",
    "rope_theta": "rotary_emb_base",
    "partial_rotary_factor": "rotary_pct",
}
ROTARY_SHARE = 0.25
MASKS = re.compile(r"\.attention\.(masked_)?bias$")
"""Old checkpoints hold the causal mask."""


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a GPT-NeoX checkpoint; errors as ``build_model`` says."""
    read = ConfigReader(config, aliases=ALIASES)
    dims = DecoderDims.read(read, default_act="gelu", default_eps=1e-5)
    parts = fused_rows(dims.num_heads, (1, 1, 1), dims.head_dim)
    bias = read.flag("attention_bias", True)
    layout = Layout(
        rope=read_rope(
            read.merged({"partial_rotary_factor": ROTARY_SHARE}),
            head_dim=dims.head_dim,
            max_position=dims.max_position,
        ),
        parallel=read.flag("use_parallel_residual", True),
        qkv_bias=bias,
        out_bias=bias,
    )
    sources = top_sources("gpt_neox.embed_in", "gpt_neox.final_layer_norm")
    sources["lm_head.weight"] = Source("embed_out.weight")
    if context.weights.has("lm_head.weight"):
        sources["lm_head.weight"] = Source("lm_head.weight")
    sources |= layer_sources(
        dims.num_layers,
        "gpt_neox.layers.",
        {
            ATTENTION_NORM: Source("input_layernorm"),
            MLP_NORM: Source("post_attention_layernorm"),
            OUT: Source("attention.dense"),
            GATE_UP[1]: Source("mlp.dense_h_to_4h"),
            DOWN: Source("mlp.dense_4h_to_h"),
        }
        | {
            name: Source("attention.query_key_value", rows)
            for name, rows in zip(QKV, parts, strict=True)
        },
    )
    weights = context.weights.rearranged(sources, unused=MASKS)
    return build_layer_norm_decoder(context.with_weights(weights), dims, layout)
