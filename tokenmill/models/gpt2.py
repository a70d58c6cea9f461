"""GPT-2: learned positions, matrices stored transposed, and q, k and v in one tensor.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
"""

from __future__ import annotations

import re
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

ALIASES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}
PREFIXES = ("transformer.", "")
MASKS = re.compile(r"\.attn\.(masked_)?bias$")
"""Old checkpoints hold the causal mask."""


def read_dims(read: ConfigReader) -> DecoderDims:
    """The sizes. Raises CheckpointError for the variants of GPT-2 that nothing here computes."""
    for key, default in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        if read.flag(key, default) != default:
            raise read.error(key, f"is {not default}, which is not supported")
    return DecoderDims.read(
        read.merged({"intermediate_size": 4 * read.integer("hidden_size")}),
        default_act="gelu_new",
        default_eps=1e-5,
        default_tied=True,
    )


def build(config: Mapping[str, Any], context: BuildContext) -> Decoder:
    """The model of a GPT-2 checkpoint; errors as ``build_model`` says."""
    dims = read_dims(ConfigReader(config, aliases=ALIASES))
    prefix = context.weights.prefix(PREFIXES, "wte.weight")
    parts = torch.split(torch.arange(3 * dims.hidden_size), dims.hidden_size)
    sources = top_sources(f"{prefix}wte", f"{prefix}ln_f")
    sources[POSITIONS] = Source(f"{prefix}wpe.weight")
    sources |= layer_sources(
        dims.num_layers,
        f"{prefix}h.",
        {
            ATTENTION_NORM: Source("ln_1"),
            MLP_NORM: Source("ln_2"),
            OUT: Source("attn.c_proj", transposed=True),
            GATE_UP[1]: Source("mlp.c_fc", transposed=True),
            DOWN: Source("mlp.c_proj", transposed=True),
        }
        | {
            name: Source("attn.c_attn", rows, transposed=True)
            for name, rows in zip(QKV, parts, strict=True)
        },
    )
    weights = context.weights.rearranged(sources, unused=MASKS)
    return build_layer_norm_decoder(context.with_weights(weights), dims, Layout(learned_positions=True))
