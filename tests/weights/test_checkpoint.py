"""Checkpoints against models that transformers made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers

from tests.weights.gguf_factory import (
    quantized,
    tiny_gguf,
    tiny_metadata,
    tiny_tensors,
    write_gguf,
)
from tokenmill.errors import CheckpointError
from tokenmill.weights import gguf_map
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.ggml_formats import dequantize, plain
from tokenmill.weights.sources import resolve

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama-bias": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 8, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2Config", {"head_dim": 8, "sliding_window": 16, "query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 8, "sliding_window": 16, "query_pre_attn_scalar": 8}),
    "granite": (
        "GraniteConfig",
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.25,
            "residual_multiplier": 0.5,
            "logits_scaling": 8.0,
        },
    ),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 2}),
    "olmo2": ("Olmo2Config", {}),
    "phi3": ("Phi3Config", {"sliding_window": 100}),
}


def tiny_model(family: str) -> Any:
    torch.manual_seed(0)
    name, extra = FAMILIES[family]
    config = getattr(transformers, name)(**SHAPE | extra)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def converted(model: Any, family: str, format: str = "F32") -> dict[str, Any]:
    """The model's tensors as a converter writes them into a GGUF file."""
    architecture = family.split("-")[0]
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    result = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1
        if gguf_map.FAMILIES[architecture].permuted and ("q_proj" in name or "k_proj" in name):
            count = heads[name.split(".")[-2]]
            split = tensor.reshape(count, 2, tensor.shape[0] // count // 2, *tensor.shape[1:])
            tensor = split.swapaxes(1, 2).reshape(tensor.shape)
        gguf_name = gguf_map.gguf_name(gguf_map.FAMILIES[architecture], name)
        result[gguf_name] = quantized(tensor, format if tensor.dim() == 2 else "F32")
    return result


def metadata_for(family: str) -> dict[str, Any]:
    architecture = family.split("-")[0]
    metadata = tiny_metadata(architecture)
    if architecture == "gemma3":
        metadata["gemma3.rope.freq_base"] = 1e6
    if architecture == "smollm3":
        metadata["smollm3.rope.freq_base"] = 2e6
    if architecture == "granite":
        metadata |= {
            "granite.embedding_scale": 12.0,
            "granite.attention.scale": 0.25,
            "granite.residual_scale": 0.5,
            "granite.logit_scale": 8.0,
        }
    if architecture == "phi3":
        metadata["phi3.attention.sliding_window"] = 100
    if architecture == "phi3":
        metadata["phi3.rope.scaling.original_context_length"] = 4096
    return metadata


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_answers_like_the_directory(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    model.save_pretrained(tmp_path / "hf")
    directory = open_checkpoint(tmp_path / "hf")
    file = open_checkpoint(
        write_gguf(tmp_path / "m.gguf", metadata_for(family), converted(model, family))
    )

    assert (directory.kind, file.kind) == ("safetensors", "gguf")
    assert set(file.names()) == set(directory.names())
    offset = 1 if file.norm_offset_applied else 0
    assert file.norm_offset_applied == family.startswith("gemma")
    for name in directory.names():
        expected = plain(directory.get(name))
        if name.endswith("norm.weight"):
            expected = expected + offset
        assert torch.equal(plain(file.get(name)), expected), name
        assert file.get(name).name == name

    # The configuration means the same to transformers, whichever file it came from.
    def understood(config: dict[str, Any]) -> dict[str, Any]:
        kind = transformers.AutoConfig.for_model(config["model_type"]).__class__
        meaning = kind.from_dict(config).to_dict()
        for key in ("dtype", "_name_or_path", "transformers_version", "use_cache"):
            meaning.pop(key, None)
        return meaning

    theirs, ours = understood(directory.config), understood(file.config)
    # Written for clarity by one side only.
    for key in ("head_dim", "use_sliding_window", "max_window_layers"):
        ours[key] = theirs.get(key, ours.get(key))
        theirs[key] = ours[key]
    assert ours == theirs
    assert file.config["architectures"] == directory.config["architectures"]


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0", "F16"])
def test_rows_of_q_and_k_are_put_back_when_quantised(format: str, tmp_path: Path) -> None:
    model = tiny_model("llama")
    path = write_gguf(tmp_path / "m.gguf", metadata_for("llama"), converted(model, "llama", format))
    checkpoint = open_checkpoint(path)
    for part in ("q_proj", "k_proj", "v_proj"):
        name = f"model.layers.1.self_attn.{part}.weight"
        weight = model.state_dict()[name]
        assert checkpoint.get(name).format == format
        assert torch.allclose(dequantize(checkpoint.get(name)), weight, atol=0.3)
        coarse = converted(model, "qwen2", format)[f"blk.1.attn_{part[0]}.weight"].data
        assert checkpoint.get(name).data.numpy().tobytes() == coarse


def test_names_map_both_ways() -> None:
    for architecture, family in gguf_map.FAMILIES.items():
        for name in tiny_tensors(architecture, tied=False):
            ours = gguf_map.hugging_face_name(family, name)
            assert ours.startswith(("model.", "lm_head.")), name
            assert gguf_map.gguf_name(family, ours) == name
        assert gguf_map.hugging_face_name(family, "rope_freqs.weight") == "rope_freqs.weight"
        assert gguf_map.gguf_name(family, "rope_freqs.weight") == "rope_freqs.weight"


def test_generation_config_lists_every_end_of_turn(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "m.gguf"))
    assert checkpoint.generation_config == {"bos_token_id": 1, "eos_token_id": [2, 0]}
    assert checkpoint.metadata["tokenizer.ggml.model"] == "gpt2"


@pytest.mark.model
def test_the_demo_model() -> None:
    path = resolve("demo")
    checkpoint = open_checkpoint(path)
    wanted = {"hidden_size": 576, "num_hidden_layers": 30, "rope_theta": 100000.0, "rms_norm_eps": 1e-5}
    assert {key: checkpoint.config[key] for key in wanted} == wanted
    assert checkpoint.generation_config["eos_token_id"] == [2, 0]
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert len(stored) == len(checkpoint.names())
    embedding = stored["token_embd.weight"]
    expected = torch.from_numpy(gguf.quants.dequantize(embedding.data, embedding.tensor_type))
    assert torch.equal(dequantize(checkpoint.get("model.embed_tokens.weight")), expected)
    key = stored["blk.3.attn_k.weight"]
    expected = torch.from_numpy(gguf.quants.dequantize(key.data, key.tensor_type))
    expected = expected.view(3, 32, 2, 576).swapaxes(1, 2).reshape(192, 576)
    assert torch.equal(dequantize(checkpoint.get("model.layers.3.self_attn.k_proj.weight")), expected)


def test_directories(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"no config\.json and no GGUF"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no safetensors files and no GGUF"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="pickles"):
        open_checkpoint(tmp_path)
    tiny_gguf(tmp_path / "a.gguf")
    assert open_checkpoint(str(tmp_path)).path == tmp_path / "a.gguf"
    tiny_gguf(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"2 GGUF files; name one of them: a\.gguf, b\.gguf"):
        open_checkpoint(tmp_path)


def test_a_weight_file_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="without its configuration"):
        open_checkpoint(tmp_path / "model.safetensors")


def test_quantised_hugging_face_checkpoints_are_refused(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="quantised with gptq"):
        open_checkpoint(tmp_path)


def test_generation_config_of_a_directory(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    assert open_checkpoint(tmp_path).generation_config == {"eos_token_id": [2, 5]}
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: the JSON is not an object"):
        open_checkpoint(tmp_path)


def test_a_gguf_file_of_olmo3_is_refused(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", "olmo2", attention__sliding_window=64)
    with pytest.raises(CheckpointError, match="OLMo 3"):
        open_checkpoint(path)
