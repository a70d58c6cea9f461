"""What can't be built says why, in one error, before a weight is packed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from tests.models.harness import MemoryCheckpoint, OurModel, memory_checkpoint, randomise, raw_tensor
from tokenmill.cache.spec import FullAttentionSpec
from tokenmill.config import LoadConfig
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.models.registry import FAMILIES, build_model, family_of
from tokenmill.ops.reference import ReferenceProvider
from tokenmill.ops.table import OpTable

ROOT = Path(__file__).parents[2]

SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


class NoPacking(ReferenceProvider):
    """Checks come before packing, so with these nothing may be packed."""

    def pack(self, segments: Any) -> Any:
        raise AssertionError(f"packed {segments[0].name}")


@pytest.fixture
def checkpoint() -> MemoryCheckpoint:
    return memory_checkpoint(randomise(LlamaForCausalLM(LlamaConfig(**SMALL))))


def build(checkpoint: MemoryCheckpoint, **changes: Any) -> Any:
    options: dict[str, Any] = {
        "load": LoadConfig("test"),
        "max_tokens": 8,
        "max_logits": 2,
        "max_model_len": None,
        "cache_dtype": "auto",
    }
    ops = changes.pop("ops", OpTable([NoPacking()]))
    return build_model(checkpoint, ops, **(options | changes))


def test_every_family_says_what_covers_it() -> None:
    names = [name for family in FAMILIES for name in family.architectures]
    assert len(names) == len(set(names))
    for family in FAMILIES:
        test = (ROOT / family.test).read_text()
        assert any(name in test for name in family.architectures)
        assert family_of({"architectures": [family.architectures[0]]}) is family


@pytest.mark.parametrize("config", [{"architectures": ["BertModel"]}, {"architectures": []}, {}])
def test_an_unknown_architecture_lists_what_is_supported(
    checkpoint: MemoryCheckpoint, config: dict[str, Any]
) -> None:
    checkpoint.config = config
    with pytest.raises(CheckpointError, match=r"LlamaForCausalLM.*Phi3ForCausalLM"):
        build(checkpoint)


def test_missing_misshapen_and_unknown_tensors_come_in_one_error(checkpoint: MemoryCheckpoint) -> None:
    tensors = checkpoint.tensors
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        del tensors[f"model.layers.1.self_attn.{name}.weight"]
    del tensors["lm_head.weight"]
    norm = "model.norm.weight"
    tensors[norm] = raw_tensor(norm, torch.ones(63))
    extra = "model.layers.2.mlp.up_proj.weight"
    tensors[extra] = raw_tensor(extra, torch.ones(2, 2))
    with pytest.raises(CheckpointError) as caught:
        build(checkpoint)
    message = str(caught.value)
    assert "missing: model.layers.1.self_attn.q_proj.weight" in message
    assert "and 1 more" in message
    assert "model.norm.weight is [63], expected [64]" in message
    assert f"not part of this architecture: {extra}" in message
    assert "\n" not in message


def test_tensors_that_only_repeat_the_configuration_are_ignored(checkpoint: MemoryCheckpoint) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    checkpoint.tensors[name] = raw_tensor(name, torch.ones(8))
    assert build(checkpoint, ops=OpTable([ReferenceProvider()])).max_position == 128


def test_a_tied_head_may_be_stored_again_but_not_in_another_shape(checkpoint: MemoryCheckpoint) -> None:
    checkpoint.config["tie_word_embeddings"] = True
    build(checkpoint, ops=OpTable([ReferenceProvider()]))
    checkpoint.tensors["lm_head.weight"] = raw_tensor("lm_head.weight", torch.ones(131, 65))
    with pytest.raises(CheckpointError, match=r"lm_head.weight is \[131, 65\]"):
        build(checkpoint)


def test_rope_factors_of_a_file_must_fit(checkpoint: MemoryCheckpoint) -> None:
    name = "rope_freqs.weight"
    checkpoint.tensors[name] = raw_tensor(name, torch.ones(7))
    with pytest.raises(CheckpointError, match=r"rope_freqs.weight is \[7\], expected \[8\]"):
        build(checkpoint)


def test_rope_factors_of_a_file_are_used(checkpoint: MemoryCheckpoint) -> None:
    prompt = list(range(40))
    plain = OurModel(checkpoint, OpTable([ReferenceProvider()])).logits(prompt)
    name = "rope_freqs.weight"
    checkpoint.tensors[name] = raw_tensor(name, torch.full((8,), 2.0))
    divided = OurModel(checkpoint, OpTable([ReferenceProvider()])).logits(prompt)
    checkpoint.tensors.pop(name)
    checkpoint.config["rope_parameters"] = {
        "rope_type": "linear",
        "factor": 2.0,
        "rope_theta": checkpoint.config["rope_parameters"]["rope_theta"],
    }
    scaled = OurModel(checkpoint, OpTable([ReferenceProvider()])).logits(prompt)
    assert torch.equal(divided, scaled)
    assert not torch.equal(divided, plain)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", None),
        ("hidden_size", 0),
        ("hidden_size", "64"),
        ("hidden_size", 1 << 40),
        ("hidden_size", 64.5),
        ("vocab_size", -1),
        ("vocab_size", 1 << 30),
        ("num_hidden_layers", 1 << 20),
        ("num_hidden_layers", True),
        ("num_attention_heads", 7),
        ("num_key_value_heads", 3),
        ("head_dim", 15),
        ("intermediate_size", None),
        ("max_position_embeddings", None),
        ("max_position_embeddings", 1 << 40),
        ("rms_norm_eps", "small"),
        ("rms_norm_eps", float("inf")),
        ("hidden_act", "relu6"),
        ("hidden_act", 3),
        ("tie_word_embeddings", "yes"),
        ("attention_bias", 1),
    ],
)
def test_absurd_configurations_name_the_key(checkpoint: MemoryCheckpoint, key: str, value: Any) -> None:
    if key == "num_attention_heads":
        checkpoint.config["head_dim"] = None
        checkpoint.config["num_key_value_heads"] = 7
    checkpoint.config[key] = value
    with pytest.raises(CheckpointError, match=key):
        build(checkpoint)


@pytest.mark.parametrize(
    ("layer_types", "window"),
    [
        ("full_attention", 8),
        (["full_attention"], 8),
        (["full_attention", "linear_attention"], 8),
        (["full_attention", "sliding_attention"], None),
        (["full_attention", "sliding_attention"], 0),
    ],
)
def test_absurd_windows_are_refused(
    checkpoint: MemoryCheckpoint, layer_types: Any, window: int | None
) -> None:
    checkpoint.config |= {
        "architectures": ["Gemma2ForCausalLM"],
        "layer_types": layer_types,
        "sliding_window": window,
    }
    with pytest.raises(CheckpointError, match=r"layer_types|sliding_window"):
        build(checkpoint)


def test_a_length_that_the_model_cannot_read_is_refused(checkpoint: MemoryCheckpoint) -> None:
    with pytest.raises(ConfigError, match="choose at most 128"):
        build(checkpoint, max_model_len=129)


@pytest.mark.parametrize(
    ("stored", "choice", "expected"),
    [
        (torch.float32, "auto", torch.float32),
        (torch.bfloat16, "auto", torch.bfloat16),
        (torch.float16, "auto", torch.float16),
        (torch.float32, "bfloat16", torch.bfloat16),
        (torch.float32, torch.float16, torch.float16),
    ],
)
def test_the_type_of_the_cache(
    checkpoint: MemoryCheckpoint, stored: torch.dtype, choice: Any, expected: torch.dtype
) -> None:
    for name, raw in checkpoint.tensors.items():
        checkpoint.tensors[name] = raw_tensor(
            name, raw.data.view(torch.float32).view(raw.shape).to(stored)
        )
    model = build(checkpoint, ops=OpTable([ReferenceProvider()]), cache_dtype=choice)
    assert model.cache_specs() == [FullAttentionSpec(2, 16, expected)] * 2


def test_phi3_checks_its_fused_projections() -> None:
    config = Phi3Config(**SMALL, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    checkpoint = memory_checkpoint(randomise(Phi3ForCausalLM(config)))
    name = "model.layers.0.self_attn.qkv_proj.weight"
    checkpoint.tensors[name] = raw_tensor(name, torch.ones(64, 64))
    with pytest.raises(CheckpointError, match=r"qkv_proj.weight is \[64, 64\], expected \[128, 64\]"):
        build(checkpoint)


def test_the_table_of_families_is_light_to_import() -> None:
    code = "import sys, tokenmill.models.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
