"""What GGUF metadata means in the words of config.json."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.weights.gguf_factory import (
    Tensor,
    quantized,
    tiny_gguf,
    tiny_metadata,
    tiny_tensors,
    write_gguf,
)
from tokenmill.errors import CheckpointError
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.ggml_formats import plain
from tokenmill.weights.gguf_map import shortest


def config(path: Path, architecture: str = "llama", **overrides: Any) -> dict[str, Any]:
    return open_checkpoint(tiny_gguf(path / "m.gguf", architecture, **overrides)).config


def test_fp32_metadata_reads_as_it_was_written() -> None:
    for number in (1e-6, 1e-5, 0.1, 1e6, 500000.0, 1.1902380714238083, 3.0e38):
        stored = torch.tensor(number, dtype=torch.float32).item()
        assert torch.tensor(shortest(stored), dtype=torch.float32).item() == stored
    assert shortest(torch.tensor(1e-6, dtype=torch.float32).item()) == 1e-6
    assert shortest(1e300) == 1e300


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention__head_count",
        "attention__layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    name = f"llama.{key.replace('__', '.')}"
    with pytest.raises(CheckpointError, match=rf"metadata '{name}' is missing"):
        config(tmp_path, **{key: None})


def test_a_gemma_without_its_window_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'gemma3\.attention\.sliding_window' is missing"):
        config(tmp_path, "gemma3", attention__sliding_window=None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"block_count": 0}, "block_count' is 0, outside 1 to 4096"),
        ({"block_count": 1 << 40}, "outside 1 to 4096"),
        ({"block_count": "two"}, "'two', not a whole number"),
        ({"block_count": True}, "True, not a whole number"),
        ({"attention__head_count": 5}, "is 5, which does not divide 32"),
        ({"attention__head_count_kv": [1, 2]}, "differs from layer to layer"),
        ({"embedding_length": 48}, r"is 48, but token_embd\.weight has rows of 32"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "not a finite number"),
        ({"attention__layer_norm_rms_epsilon": -1.0}, "must be positive"),
        ({"attention__value_length": 4}, "value_length' is 4, but heads have 8"),
        ({"rope__dimension_count": 16}, "dimension_count' is 16, but heads have 8"),
        ({"rope__scaling__type": "spiral", "rope__scaling__factor": 2.0}, "'spiral', not none"),
        ({"rope__scaling__type": 3}, "is not a string"),
        ({"expert_count": 8}, "mixture-of-experts"),
    ],
)
def test_absurd_values_are_named(overrides: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        config(tmp_path, **overrides)


def test_unsupported_or_absent_architectures(tmp_path: Path) -> None:
    metadata = tiny_metadata("mamba")
    with pytest.raises(CheckpointError, match="architecture 'mamba' is not supported"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata, tiny_tensors()))
    del metadata["general.architecture"]
    with pytest.raises(CheckpointError, match=r"'general\.architecture' is missing"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata, tiny_tensors()))


def test_a_file_without_embedding_is_refused(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    del tensors["token_embd.weight"]
    with pytest.raises(CheckpointError, match=r"no matrix token_embd\.weight"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", tiny_metadata(), tensors))


def test_a_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    tensors = tiny_tensors() | {"model.norm.weight": quantized(torch.zeros(32))}
    with pytest.raises(CheckpointError, match="a tensor under two names"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", tiny_metadata(), tensors))


def test_mistral_is_read_as_llama(tmp_path: Path) -> None:
    assert config(tmp_path, "mistral")["architectures"] == ["LlamaForCausalLM"]


def test_vocabulary_and_tying_follow_the_tensors(tmp_path: Path) -> None:
    untied = open_checkpoint(tiny_gguf(tmp_path / "m.gguf", tied=False, vocab_size=60)).config
    assert untied["vocab_size"] == 64
    assert untied["tie_word_embeddings"] is False
    assert config(tmp_path)["tie_word_embeddings"] is True


def test_defaults_of_absent_keys(tmp_path: Path) -> None:
    values = config(tmp_path, rope__freq_base=None, attention__head_count_kv=None)
    assert values["rope_theta"] == 10000.0
    assert values["num_key_value_heads"] == 4
    assert values["rope_scaling"] is None
    assert "partial_rotary_factor" not in values


def test_equal_values_per_layer_count_as_one(tmp_path: Path) -> None:
    assert config(tmp_path, attention__head_count_kv=[2, 2])["num_key_value_heads"] == 2


def test_rope_scaling(tmp_path: Path) -> None:
    linear = config(tmp_path, rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert linear["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    yarn = config(
        tmp_path,
        "qwen3",
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=32,
        rope__scaling__attn_factor=0.5,
        rope__scaling__yarn_beta_fast=16.0,
    )
    assert yarn["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "attention_factor": 0.5 * (0.1 * math.log(4.0) + 1.0),
        "beta_fast": 16.0,
    }
    assert (
        config(tmp_path, rope__scaling__type="none", rope__scaling__factor=4.0)["rope_scaling"] is None
    )


def test_longrope_factors_come_from_tensors(tmp_path: Path) -> None:
    factors = {"short": torch.tensor([1.0, 1.05, 1.1]), "long": torch.tensor([1.0, 2.5, 7.3])}
    tensors = tiny_tensors("phi3") | {
        f"rope_factors_{kind}.weight": quantized(values) for kind, values in factors.items()
    }
    metadata = tiny_metadata(
        "phi3",
        rope__dimension_count=6,
        rope__scaling__original_context_length=32,
        rope__scaling__attn_factor=1.19,
        attention__sliding_window=0,
    )
    values = open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata, tensors)).config
    assert values["rope_scaling"] == {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.05, 1.1],
        "long_factor": [1.0, 2.5, 7.3],
        "attention_factor": 1.19,
        "original_max_position_embeddings": 32,
    }
    assert values["original_max_position_embeddings"] == 32
    assert values["partial_rotary_factor"] == 0.75
    assert values["sliding_window"] is None

    del tensors["rope_factors_long.weight"]
    with pytest.raises(CheckpointError, match="only one of rope_factors_long"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata, tensors))
    tensors["rope_factors_long.weight"] = Tensor("F16", (3,), bytes(6))
    with pytest.raises(CheckpointError, match="not a list of F32"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata, tensors))


def test_llama3_frequency_divisors_keep_their_name(tmp_path: Path) -> None:
    divisors = torch.tensor([1.0, 1.0, 4.0, 8.0])
    tensors = tiny_tensors() | {"rope_freqs.weight": quantized(divisors)}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", tiny_metadata(), tensors))
    assert "rope_freqs.weight" in checkpoint.names()
    assert torch.equal(plain(checkpoint.get("rope_freqs.weight")), divisors)


FULL, SLIDING = "full_attention", "sliding_attention"


def test_window_patterns(tmp_path: Path) -> None:
    assert config(tmp_path, "gemma2")["layer_types"] == [SLIDING, FULL]
    assert config(tmp_path, "gemma3")["layer_types"] == [SLIDING, SLIDING]
    flags = config(tmp_path, "gemma3", attention__sliding_window_pattern=[False, True])
    assert flags["layer_types"] == [FULL, SLIDING]
    period = config(tmp_path, "gemma3", attention__sliding_window_pattern=2)
    assert period["layer_types"] == [SLIDING, FULL]
    seven = config(tmp_path, "gemma3", block_count=7)["layer_types"]
    assert seven == [SLIDING] * 5 + [FULL] + [SLIDING]
    for wrong in ([True], [1, 0]):
        with pytest.raises(CheckpointError, match="not a list of 2 truth values"):
            config(tmp_path, "gemma3", attention__sliding_window_pattern=wrong)


def test_gemma_scale_and_caps(tmp_path: Path) -> None:
    gemma2 = config(tmp_path, "gemma2")
    assert (gemma2["attn_logit_softcapping"], gemma2["final_logit_softcapping"]) == (50.0, 30.0)
    capped = config(tmp_path, "gemma2", attn_logit_softcapping=20.0, final_logit_softcapping=10.0)
    assert (capped["attn_logit_softcapping"], capped["final_logit_softcapping"]) == (20.0, 10.0)
    gemma3 = config(tmp_path, "gemma3", rope__freq_base=None)
    assert gemma3["attn_logit_softcapping"] is None
    assert gemma3["query_pre_attn_scalar"] == 8
    assert (gemma3["rope_theta"], gemma3["rope_local_base_freq"]) == (1e6, 1e4)
    assert config(tmp_path, "gemma3", attention__scale=0.25)["query_pre_attn_scalar"] == 16.0
    # The 27B models scale by the width per head, which is not the width of a head there.
    big = config(tmp_path, "gemma2", block_count=46, attention__head_count=2)
    assert big["query_pre_attn_scalar"] == 16


def test_rows_that_do_not_fit_the_heads_are_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "m.gguf", attention__head_count_kv=3))
    with pytest.raises(
        CheckpointError, match=r"k_proj\.weight has 16 rows, not a whole number of pairs"
    ):
        checkpoint.get("model.layers.0.self_attn.k_proj.weight")
    with pytest.raises(CheckpointError, match="no tensor nonsense"):
        checkpoint.get("nonsense")
