"""OPT: GPT-2's form with ReLU, and a table of positions whose first two rows are of no use.

arXiv:2205.01068. The 350M model, which normalises after its branches, is not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tokenmill.models.decoder import BuildContext, Decoder, DecoderDims
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.layer_norm_decoder import (
    POSITIONS,
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
from tokenmill.models.rearranged import Source

ALIASES = {"intermediate_size": "ffn_dim", "hidden_act": "activation_function"}
PREFIXES = ("model.decoder.", "decoder.")
FIRST_POSITION = 2
EPS = 1e-5


def read_dims(read: ConfigReader) -> DecoderDims:
    """The sizes. Raises CheckpointError for the variants of OPT that nothing here computes."""
    for key, default in (
        ("do_layer_norm_before", True),
        ("layer_norm_elementwise_affine", True),
        ("_remove_final_layer_norm", False),
    ):
        if read.flag(key, default) != default:
            raise read.error(key, f"is {not default}, which is not supported")
    dims = DecoderDims.read(read, default_act="relu", default_eps=EPS, default_tied=True)
    if read.integer("word_embed_proj_dim", dims.hidden_size) != dims.hidden_size:
        raise read.error("word_embed_proj_dim", "differs from hidden_size, which is not supported")
    return dims


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of an OPT checkpoint; errors as ``build_model`` says."""
    read = ConfigReader(config, aliases=ALIASES)
    dims = read_dims(read)
    prefix = context.weights.prefix(PREFIXES, "embed_tokens.weight")
    sources = top_sources(f"{prefix}embed_tokens", f"{prefix}final_layer_norm")
    sources[POSITIONS] = Source(
        f"{prefix}embed_positions.weight",
        torch.arange(FIRST_POSITION, FIRST_POSITION + dims.max_position),
    )
    sources |= layer_sources(
        dims.num_layers,
        f"{prefix}layers.",
        {
            ATTENTION_NORM: Source("self_attn_layer_norm"),
            MLP_NORM: Source("final_layer_norm"),
            OUT: Source("self_attn.out_proj"),
            GATE_UP[1]: Source("fc1"),
            DOWN: Source("fc2"),
        }
        | {name: Source(name) for name in QKV},
    )
    bias = read.flag("enable_bias", True)
    layout = Layout(learned_positions=True, qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    return build_layer_norm_decoder(
        context.with_weights(context.weights.rearranged(sources)), dims, layout
    )
