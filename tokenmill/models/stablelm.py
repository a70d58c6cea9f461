"""StableLM: Llama with LayerNorms and partial rotation; in some, attention beside the MLP.

arXiv:2402.17834.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenmill.models.decoder import BuildContext, Decoder, DecoderDims
from tokenmill.models.hf_config import ConfigReader
from tokenmill.models.layer_norm_decoder import (
    Layout,
    build_layer_norm_decoder,
)
from tokenmill.models.projections import ATTENTION_NORM, MLP_NORM
from tokenmill.models.rope_config import read_rope

ALIASES = {"rms_norm_eps": "layer_norm_eps"}
ROTARY_SHARE = 0.25


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a StableLM checkpoint; errors as ``build_model`` says."""
    read = ConfigReader(config, aliases=ALIASES)
    if read.flag("qk_layernorm", False):
        raise read.error("qk_layernorm", "is true, which is not supported")
    dims = DecoderDims.read(read, default_eps=1e-5)
    parallel = read.flag("use_parallel_residual", False)
    layout = Layout(
        rope=read_rope(
            read.merged({"partial_rotary_factor": ROTARY_SHARE}),
            head_dim=dims.head_dim,
            max_position=dims.max_position,
        ),
        parallel=parallel,
        mlp_norm=ATTENTION_NORM if parallel else MLP_NORM,
        gated=True,
        qkv_bias=read.flag("use_qkv_bias", False),
        out_bias=False,
        mlp_bias=False,
    )
    return build_layer_norm_decoder(context, dims, layout)
