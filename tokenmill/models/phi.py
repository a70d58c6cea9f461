"""Phi-1, Phi-1.5 and Phi-2: attention beside the MLP behind one LayerNorm, partial rotation.

arXiv:2309.05463.
"""

from __future__ import annotations

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
    OUT,
)
from tokenmill.models.rearranged import Source
from tokenmill.models.rope_config import read_rope

ALIASES = {"rms_norm_eps": "layer_norm_eps"}
ROTARY_SHARE = 0.5


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a Phi-1 or Phi-2 checkpoint; errors as ``build_model`` says."""
    read = ConfigReader(config, aliases=ALIASES)
    if read.flag("qk_layernorm", False):
        raise read.error("qk_layernorm", "is true, which is not supported")
    dims = DecoderDims.read(read, default_act="gelu_new", default_eps=1e-5)
    layout = Layout(
        rope=read_rope(
            read.merged({"partial_rotary_factor": ROTARY_SHARE}),
            head_dim=dims.head_dim,
            max_position=dims.max_position,
        ),
        parallel=True,
        mlp_norm=ATTENTION_NORM,
        logit_bias=True,
    )
    sources = top_sources("model.embed_tokens", "model.final_layernorm")
    sources |= layer_sources(
        dims.num_layers,
        "model.layers.",
        {
            OUT: Source("self_attn.dense"),
            GATE_UP[1]: Source("mlp.fc1"),
            DOWN: Source("mlp.fc2"),
        },
    )
    return build_layer_norm_decoder(
        context.with_weights(context.weights.rearranged(sources)), dims, layout
    )
