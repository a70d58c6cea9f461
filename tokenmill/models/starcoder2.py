"""StarCoder2: grouped queries, rotation and a window, with LayerNorms and a plain MLP.

arXiv:2402.19173.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenmill.models.decoder import BuildContext, Decoder, DecoderDims
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.layer_norm_decoder import Layout, build_layer_norm_decoder, layer_sources
from tokenmill.models.projections import DOWN, GATE_UP
from tokenmill.models.rearranged import Source
from tokenmill.models.rope_config import read_rope

ALIASES = {"rms_norm_eps": "norm_epsilon"}


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a StarCoder2 checkpoint; errors as ``build_model`` says."""
    read = ConfigReader(config, aliases=ALIASES)
    dims = DecoderDims.read(read, default_act="gelu_pytorch_tanh", default_eps=1e-5, default_tied=True)
    bias = read.flag("use_bias", True)
    layout = Layout(
        rope=read_rope(read, head_dim=dims.head_dim, max_position=dims.max_position),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        window=read.integer("sliding_window", 0),
    )
    sources = layer_sources(
        dims.num_layers,
        "model.layers.",
        {GATE_UP[1]: Source("mlp.c_fc"), DOWN: Source("mlp.c_proj")},
    )
    return build_layer_norm_decoder(
        context.with_weights(context.weights.rearranged(sources)), dims, layout
    )
