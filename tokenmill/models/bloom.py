"""Bloom: ALiBi, a LayerNorm of the embeddings, and q, k and v fused head by head.

arXiv:2211.05100.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenmill.models.decoder import BuildContext, Decoder, DecoderDims
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.layer_norm_decoder import (
    Layout,
    alibi_slopes,
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

ALIASES = {
    "hidden_size": "n_embed",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "seq_length",
    "rms_norm_eps": "layer_norm_epsilon",
}
PREFIXES = ("transformer.", "")
TRAINED_LENGTH = 2048


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Bloom checkpoint; errors as ``build_model`` says."""
    read = ConfigReader(config, aliases=ALIASES)
    if read.flag("apply_residual_connection_post_layernorm", False):
        raise read.error("apply_residual_connection_post_layernorm", "is true, which is not supported")
    dims = DecoderDims.read(
        read.merged(
            {
                "intermediate_size": 4 * read.integer("hidden_size"),
                "max_position_embeddings": TRAINED_LENGTH,
            }
        ),
        default_act="gelu_new",
        default_eps=1e-5,
        default_tied=True,
    )
    prefix = context.weights.prefix(PREFIXES, "word_embeddings.weight")
    parts = fused_rows(dims.num_heads, (1, 1, 1), dims.head_dim)
    sources = top_sources(
        f"{prefix}word_embeddings", f"{prefix}ln_f", f"{prefix}word_embeddings_layernorm"
    )
    sources |= layer_sources(
        dims.num_layers,
        f"{prefix}h.",
        {
            ATTENTION_NORM: Source("input_layernorm"),
            MLP_NORM: Source("post_attention_layernorm"),
            OUT: Source("self_attention.dense"),
            GATE_UP[1]: Source("mlp.dense_h_to_4h"),
            DOWN: Source("mlp.dense_4h_to_h"),
        }
        | {
            name: Source("self_attention.query_key_value", rows)
            for name, rows in zip(QKV, parts, strict=True)
        },
    )
    layout = Layout(slopes=alibi_slopes(dims.num_heads), embedding_norm=True)
    return build_layer_norm_decoder(
        context.with_weights(context.weights.rearranged(sources)), dims, layout
    )
