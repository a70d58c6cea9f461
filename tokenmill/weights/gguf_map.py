"""What a GGUF file says, in the words of a Hugging Face checkpoint.

Metadata becomes the keys of the family's config.json (in the older style: ``rope_theta`` and
``rope_scaling`` at the top level), and tensors get the names that ``save_pretrained`` gives them. Key
and tensor names on the GGUF side are those of ggml's ``docs/gguf.md`` and llama.cpp's
``llama-arch.cpp``.
"""

from __future__ import annotations

import math
import re
import reprlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tokenmill.errors import CheckpointError
from tokenmill.weights.ggml_formats import FORMATS, plain
from tokenmill.weights.gguf_file import GGUFFile, StringArray
from tokenmill.weights.tensor import RawTensor

ROPE_FREQS = "rope_freqs.weight"
"""Divisors of the inverse frequencies (Llama 3). Keeps its name: Hugging Face has no such tensor."""

ROPE_FACTORS_LONG = "rope_factors_long.weight"
ROPE_FACTORS_SHORT = "rope_factors_short.weight"

END_OF_TURN_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
)
"""Tokens that end an answer wherever a vocabulary has them; converters often record only one."""

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

_PROJECTION_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_LAYER_NAMES = _PROJECTION_NAMES | {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}

_QK_NORM_NAMES = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}

_SANDWICH_NORM_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

_POST_NORM_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

_FUSED_NAMES = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}


@dataclass(frozen=True)
class Family:
    """How one GGUF architecture maps to Hugging Face.

    layer_names: names within a layer, GGUF -> Hugging Face, without ``.weight`` or ``.bias``.
    permuted: the converter interleaved the rows of q and k.
    norm_offset: the converter added 1 to the norm weights.
    extra: config keys beyond those that all families have.
    """

    model_type: str
    architecture: str
    layer_names: Mapping[str, str]
    extra: Callable[[Metadata], dict[str, Any]]
    permuted: bool = False
    norm_offset: bool = False


class Metadata:
    """Reads metadata of one architecture, and says what is missing.

    Raises CheckpointError naming the key when a value is absent, of the wrong type or out of range.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.architecture = self._architecture()

    def _architecture(self) -> str:
        value = self.file.metadata.get("general.architecture")
        if not isinstance(value, str):
            raise self.error("general.architecture", "is missing")
        return value

    def error(self, key: str, problem: str) -> CheckpointError:
        """The error for a key, to be raised."""
        return CheckpointError(
            f"{self.file.path}: metadata {key!r} {problem}; "
            "the file is damaged or was converted wrongly, use another copy of the model"
        )

    def raw(self, suffix: str) -> tuple[str, Any]:
        """The full key and its value or None. A suffix without an architecture gets this file's."""
        key = (
            suffix if suffix.startswith(("tokenizer.", "general.")) else f"{self.architecture}.{suffix}"
        )
        return key, self.file.metadata.get(key)

    def integer(self, suffix: str, *, minimum: int = 1, maximum: int = (1 << 31) - 1) -> int:
        """A whole number that must be there. A list of equal numbers (one per layer) counts as one."""
        key, value = self.raw(suffix)
        if value is None:
            raise self.error(key, "is missing")
        if isinstance(value, list) and value:
            if any(v != value[0] for v in value):
                raise CheckpointError(
                    f"{self.file.path}: metadata {key!r} differs from layer to layer, "
                    "which is not supported"
                )
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, f"is {reprlib.repr(value)}, not a whole number")
        if not minimum <= value <= maximum:
            raise self.error(key, f"is {value}, outside {minimum} to {maximum}")
        return value

    def optional_integer(self, suffix: str, *, minimum: int = 0) -> int | None:
        """A whole number, or None if there is none."""
        return None if self.raw(suffix)[1] is None else self.integer(suffix, minimum=minimum)

    def number(self, suffix: str) -> float:
        """A positive finite number that must be there, as the shortest decimal that means it."""
        value = self.optional_number(suffix)
        if value is None:
            raise self.error(self.raw(suffix)[0], "is missing")
        return value

    def optional_number(self, suffix: str) -> float | None:
        """A positive finite number, or None if there is none."""
        key, value = self.raw(suffix)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.error(key, f"is {reprlib.repr(value)}, not a finite number")
        if value <= 0:
            raise self.error(key, f"is {value}, but must be positive")
        return shortest(float(value))

    def text(self, suffix: str, default: str) -> str:
        """A string."""
        key, value = self.raw(suffix)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, "is not a string")
        return value

    def factors(self, name: str) -> list[float] | None:
        """The values of a small F32 tensor of rotary factors, or None if there is none."""
        if name not in self.file.tensors:
            return None
        raw = self.file.get(name)
        if raw.format != "F32" or len(raw.shape) != 1 or raw.shape[0] > 65536:
            raise CheckpointError(f"{self.file.path}: tensor {name} is not a list of F32 numbers")
        return [shortest(v) for v in plain(raw).tolist()]

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.integer("block_count", maximum=4096)

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.integer("attention.head_count", maximum=65536)

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
        value = self.optional_integer("attention.head_count_kv", minimum=1)
        return self.heads if value is None else value

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        value = self.optional_integer("attention.key_length", minimum=1)
        return self.integer("embedding_length") // self.heads if value is None else value


def shortest(value: float) -> float:
    """The fp32 number with the fewest decimal digits that rounds to ``value``'s fp32 bits.

    So that 1e-6 stored as fp32 reads 1e-6 again, as in config.json.
    """
    try:
        bits = struct.pack("<f", value)
    except OverflowError:
        return value
    for digits in range(6, 10):
        candidate = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", candidate) == bits:
                return candidate
        except OverflowError:
            continue
    return value


def _rope_scaling(meta: Metadata) -> dict[str, Any] | None:
    """``rope_scaling`` as config.json has it, or None."""
    kind = meta.text("rope.scaling.type", "none")
    factor = meta.optional_number("rope.scaling.factor")
    original = meta.optional_integer("rope.scaling.original_context_length", minimum=1)
    long_factor, short_factor = meta.factors(ROPE_FACTORS_LONG), meta.factors(ROPE_FACTORS_SHORT)
    if long_factor is not None or short_factor is not None:
        if long_factor is None or short_factor is None:
            raise CheckpointError(
                f"{meta.file.path}: only one of {ROPE_FACTORS_LONG} and {ROPE_FACTORS_SHORT} is there; "
                "the file was converted wrongly, use another copy of the model"
            )
        scaling: dict[str, Any] = {
            "rope_type": "longrope",
            "long_factor": long_factor,
            "short_factor": short_factor,
        }
        attention = meta.optional_number("rope.scaling.attn_factor")
        if attention is not None:
            scaling["attention_factor"] = attention
        if original is not None:
            scaling["original_max_position_embeddings"] = original
        return scaling
    if kind == "none" or factor is None or factor == 1.0:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise meta.error(
            meta.raw("rope.scaling.type")[0],
            f"is {reprlib.repr(kind)}, not none, linear, yarn or longrope",
        )
    scaling = {"rope_type": "yarn", "factor": factor}
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    attention = meta.optional_number("rope.scaling.attn_factor")
    if attention is not None and attention != 1.0:
        # GGUF's factor multiplies YaRN's own; config.json's replaces it.
        scaling["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0)
    for key, suffix in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
        value = meta.optional_number(f"rope.scaling.{suffix}")
        if value is not None:
            scaling[key] = value
    return scaling


def _has_bias(meta: Metadata, name: str) -> bool:
    return f"blk.0.{name}.bias" in meta.file.tensors


def _llama(meta: Metadata) -> dict[str, Any]:
    if meta.optional_integer("expert_count"):
        raise CheckpointError(f"{meta.file.path}: mixture-of-experts models are not supported yet")
    return {
        "hidden_act": "silu",
        "attention_bias": _has_bias(meta, "attn_q"),
        "mlp_bias": _has_bias(meta, "ffn_gate"),
    }


def _qwen2(meta: Metadata) -> dict[str, Any]:
    return {"hidden_act": "silu", "use_sliding_window": False}


def _qwen3(meta: Metadata) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "use_sliding_window": False,
        "attention_bias": _has_bias(meta, "attn_q"),
    }


def _phi3(meta: Metadata) -> dict[str, Any]:
    original = meta.optional_integer("rope.scaling.original_context_length", minimum=1)
    return {
        "hidden_act": "silu",
        "sliding_window": meta.optional_integer("attention.sliding_window") or None,
        "original_max_position_embeddings": original or meta.integer("context_length"),
    }


def _gemma(meta: Metadata, period: int, big_layers: int) -> dict[str, Any]:
    """What Gemma 2 and 3 share.

    period: one layer in so many sees everything, the last of each run, unless the file says otherwise.
    big_layers: the model of this many layers (the 27B) scales scores by hidden_size / heads.
    """
    key, pattern = meta.raw("attention.sliding_window_pattern")
    layers = meta.layers
    if isinstance(pattern, list):
        if len(pattern) < layers or not all(isinstance(v, bool) for v in pattern):
            raise meta.error(key, f"is not a list of {layers} truth values")
        sliding = pattern[:layers]
    else:
        period = period if pattern is None else meta.integer("attention.sliding_window_pattern")
        sliding = [(i + 1) % period != 0 for i in range(layers)]
    scale = meta.optional_number("attention.scale")
    if scale is not None:
        scalar: float = shortest(1.0 / scale**2)
    elif layers == big_layers:
        scalar = meta.integer("embedding_length") // meta.heads
    else:
        scalar = meta.head_dim
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": scalar,
        "sliding_window": meta.integer("attention.sliding_window"),
        "layer_types": ["sliding_attention" if s else "full_attention" for s in sliding],
        "final_logit_softcapping": meta.optional_number("final_logit_softcapping"),
        "attn_logit_softcapping": meta.optional_number("attn_logit_softcapping"),
    }


def _gemma2(meta: Metadata) -> dict[str, Any]:
    extra = _gemma(meta, period=2, big_layers=46)
    # Files made before the soft caps were recorded have the caps that every Gemma 2 has.
    if extra["final_logit_softcapping"] is None:
        extra["final_logit_softcapping"] = 30.0
    if extra["attn_logit_softcapping"] is None:
        extra["attn_logit_softcapping"] = 50.0
    return extra


def _gemma3(meta: Metadata) -> dict[str, Any]:
    return _gemma(meta, period=6, big_layers=62) | {
        "rope_theta": meta.optional_number("rope.freq_base") or 1000000.0,
        "rope_local_base_freq": meta.optional_number("rope.freq_base_swa") or 10000.0,
    }


def _granite(meta: Metadata) -> dict[str, Any]:
    return _llama(meta) | {
        "embedding_multiplier": meta.optional_number("embedding_scale") or 1.0,
        "attention_multiplier": meta.optional_number("attention.scale") or meta.head_dim**-0.5,
        "residual_multiplier": meta.optional_number("residual_scale") or 1.0,
        "logits_scaling": meta.optional_number("logit_scale") or 1.0,
    }


def _olmo2(meta: Metadata) -> dict[str, Any]:
    if meta.raw("attention.sliding_window")[1] is not None:
        raise CheckpointError(
            f"{meta.file.path}: OLMo 3 is not supported in GGUF files; "
            "use the model's Hugging Face directory"
        )
    return {"hidden_act": "silu", "attention_bias": _has_bias(meta, "attn_q")}


_LLAMA = Family("llama", "LlamaForCausalLM", _LAYER_NAMES, _llama, permuted=True)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", _LAYER_NAMES, _qwen2),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", _LAYER_NAMES | _QK_NORM_NAMES, _qwen3),
    "gemma2": Family(
        "gemma2", "Gemma2ForCausalLM", _LAYER_NAMES | _SANDWICH_NORM_NAMES, _gemma2, norm_offset=True
    ),
    "gemma3": Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        _LAYER_NAMES | _QK_NORM_NAMES | _SANDWICH_NORM_NAMES,
        _gemma3,
        norm_offset=True,
    ),
    "granite": Family("granite", "GraniteForCausalLM", _LAYER_NAMES, _granite, permuted=True),
    "smollm3": Family("smollm3", "SmolLM3ForCausalLM", _LAYER_NAMES, _llama, permuted=True),
    "olmo2": Family(
        "olmo2", "Olmo2ForCausalLM", _PROJECTION_NAMES | _QK_NORM_NAMES | _POST_NORM_NAMES, _olmo2
    ),
    "phi3": Family("phi3", "Phi3ForCausalLM", _LAYER_NAMES | _FUSED_NAMES, _phi3),
}
"""GGUF architecture -> how it is read."""


def family_of(meta: Metadata) -> Family:
    """The family of the file's architecture. Raises CheckpointError if it is not a supported one."""
    family = FAMILIES.get(meta.architecture)
    if family is None:
        raise CheckpointError(
            f"{meta.file.path}: architecture {reprlib.repr(meta.architecture)} "
            f"is not supported in GGUF files (supported: {', '.join(FAMILIES)})"
        )
    return family


def hugging_face_name(family: Family, name: str) -> str:
    """The Hugging Face name of a GGUF tensor; names without a counterpart stay as they are."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in family.layer_names:
        return name
    return f"model.layers.{match[1]}.{family.layer_names[match[2]]}.{match[3]}"


def gguf_name(family: Family, name: str) -> str:
    """The GGUF name of a Hugging Face tensor; the inverse of ``hugging_face_name``."""
    for gguf, ours in _TOP_NAMES.items():
        if ours == name:
            return gguf
    match = re.fullmatch(r"model\.layers\.(\d+)\.([\w.]+)\.(weight|bias)", name)
    if match is None:
        return name
    for gguf, ours in family.layer_names.items():
        if ours == match[2]:
            return f"blk.{match[1]}.{gguf}.{match[3]}"
    return name


def config_of(meta: Metadata, family: Family) -> dict[str, Any]:
    """config.json made from the metadata. Raises CheckpointError naming any key that is missing."""
    embedding = meta.file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(
            f"{meta.file.path} has no matrix token_embd.weight; use another copy of the model"
        )
    hidden = meta.integer("embedding_length")
    if embedding.shape[1] != hidden:
        raise meta.error(
            meta.raw("embedding_length")[0],
            f"is {hidden}, but token_embd.weight has rows of {embedding.shape[1]}",
        )
    heads = meta.heads
    if meta.optional_integer("attention.key_length") is None and hidden % heads:
        raise meta.error(
            meta.raw("attention.head_count")[0], f"is {heads}, which does not divide {hidden}"
        )
    head_dim = meta.head_dim
    value_length = meta.optional_integer("attention.value_length")
    if value_length not in (None, head_dim):
        raise meta.error(
            meta.raw("attention.value_length")[0], f"is {value_length}, but heads have {head_dim}"
        )
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": meta.integer("feed_forward_length"),
        "num_hidden_layers": meta.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": meta.kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": meta.integer("context_length"),
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.optional_number("rope.freq_base") or 10000.0,
        "rope_scaling": _rope_scaling(meta),
        "tie_word_embeddings": "output.weight" not in meta.file.tensors,
        "bos_token_id": meta.optional_integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.optional_integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.optional_integer("tokenizer.ggml.padding_token_id"),
    }
    rotary = meta.optional_integer("rope.dimension_count", minimum=1)
    if rotary is not None and rotary != head_dim:
        if rotary > head_dim:
            raise meta.error(
                meta.raw("rope.dimension_count")[0], f"is {rotary}, but heads have {head_dim}"
            )
        config["partial_rotary_factor"] = rotary / head_dim
    return config | family.extra(meta)


def generation_config_of(meta: Metadata) -> dict[str, Any]:
    """generation_config.json made from the metadata: which tokens begin and end a text."""
    ends: list[int] = []
    for key in ("eos", "eot", "eom"):
        token = meta.optional_integer(f"tokenizer.ggml.{key}_token_id")
        if token is not None and token not in ends:
            ends.append(token)
    tokens = meta.file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, StringArray):
        ends += [token for token in tokens.positions(END_OF_TURN_TOKENS).values() if token not in ends]
    config: dict[str, Any] = {}
    bos = meta.optional_integer("tokenizer.ggml.bos_token_id")
    if bos is not None:
        config["bos_token_id"] = bos
    if ends:
        config["eos_token_id"] = ends
    return config


def uninterleave_rows(raw: RawTensor, heads: int) -> RawTensor:
    """Rows (or the elements of a bias) of q or k in Hugging Face order.

    Converters of architecture llama put row i and row i + head_dim / 2 of a head next to each other,
    for llama.cpp's rotary embedding of neighbouring pairs. This undoes it.

    Raises CheckpointError if the rows are not ``heads`` heads of even width.
    """
    rows = raw.shape[0]
    if rows % (2 * heads):
        raise CheckpointError(
            f"tensor {raw.name} has {rows} rows, not a whole number of pairs for each of {heads} heads"
        )
    pairs = torch.arange(rows).view(heads, rows // heads // 2, 2)
    index = pairs.transpose(1, 2).reshape(-1)
    if len(raw.shape) > 1:
        return raw.permute_rows(index)
    if FORMATS[raw.format].block_size != 1:
        raise CheckpointError(
            f"tensor {raw.name} is a vector of quantised format {raw.format}; not supported"
        )
    data = raw.data.view(rows, -1)[index].reshape(-1)
    return RawTensor(raw.name, raw.format, raw.shape, data)
