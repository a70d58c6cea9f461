"""Falcon: attention beside the MLP; one or few keys for all queries; rotation or ALiBi.

arXiv:2311.16867. Three ways of fusing q, k and v exist: one key for all queries (7B), groups of queries
with their key (40B, 180B), and one key for each query (the RefinedWeb models).
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
from tokenmill.models.rope_config import read_rope

ALIASES = {
    "intermediate_size": "ffn_hidden_size",
    "hidden_act": "activation",
    "rms_norm_eps": "layer_norm_epsilon",
}
TRAINED_LENGTH = 2048


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Falcon checkpoint; errors as ``build_model`` says."""
    read = ConfigReader(config, aliases=ALIASES)
    grouped = read.flag("new_decoder_architecture", False)
    heads = read.integer("num_attention_heads")
    one_key = not grouped and read.flag("multi_query", True)
    kv_heads = read.integer("num_kv_heads", heads) if grouped else 1 if one_key else heads
    dims = DecoderDims.read(
        ConfigReader({**config, "num_key_value_heads": kv_heads}, aliases=ALIASES).merged(
            {
                "intermediate_size": 4 * read.integer("hidden_size"),
                "max_position_embeddings": TRAINED_LENGTH,
            }
        ),
        default_act="gelu",
        default_eps=1e-5,
        default_tied=True,
    )
    parallel = grouped or read.flag("parallel_attn", True)
    two_norms = grouped and read.integer("num_ln_in_parallel_attn", 2) == 2
    norms = {ATTENTION_NORM: Source("ln_attn" if two_norms else "input_layernorm")}
    if two_norms or not parallel:
        norms[MLP_NORM] = Source("ln_mlp" if two_norms else "post_attention_layernorm")
    parts = fused_rows(dims.num_kv_heads, (dims.num_heads // dims.num_kv_heads, 1, 1), dims.head_dim)
    sources = top_sources("transformer.word_embeddings", "transformer.ln_f")
    sources |= layer_sources(
        dims.num_layers,
        "transformer.h.",
        norms
        | {
            OUT: Source("self_attention.dense"),
            GATE_UP[1]: Source("mlp.dense_h_to_4h"),
            DOWN: Source("mlp.dense_4h_to_h"),
        }
        | {
            name: Source("self_attention.query_key_value", rows)
            for name, rows in zip(QKV, parts, strict=True)
        },
    )
    bias = read.flag("bias", False)
    alibi = read.flag("alibi", False)
    layout = Layout(
        rope=None if alibi else read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
        # Trained with slopes of bf16, added before scores are divided by the root of the head's width.
        slopes=alibi_slopes(heads).bfloat16().float() * dims.head_dim**-0.5 if alibi else None,
        parallel=parallel,
        mlp_norm=MLP_NORM if MLP_NORM in norms else ATTENTION_NORM,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )
    return build_layer_norm_decoder(
        context.with_weights(context.weights.rearranged(sources)), dims, layout
    )
