"""Which model families exist, and how one is built. Light to import: the families load on demand."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenmill.config import CacheDType, LoadConfig
from tokenmill.errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from tokenmill.models.decoder import Model
    from tokenmill.models.packed_weights import PackedWeights
    from tokenmill.ops.table import OpTable
    from tokenmill.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class Family:
    """A row of the table of supported models.

    module: in ``tokenmill.models``, with ``build(config, context) -> Model``.
    architectures: values of ``architectures`` in config.json. gguf: values of ``general.architecture``.
    test: what shows that its results are right, relative to the repository.
    """

    name: str
    module: str
    architectures: tuple[str, ...]
    gguf: tuple[str, ...]
    test: str


FAMILIES: tuple[Family, ...] = (
    Family(
        "Llama 1 to 3.x, SmolLM2, Mistral, Ministral",
        "llama",
        ("LlamaForCausalLM", "MistralForCausalLM", "MinistralForCausalLM"),
        ("llama",),
        "tests/models/test_llama.py",
    ),
    Family("Qwen2, Qwen2.5", "qwen2", ("Qwen2ForCausalLM",), ("qwen2",), "tests/models/test_qwen.py"),
    Family("Qwen3 (dense)", "qwen3", ("Qwen3ForCausalLM",), ("qwen3",), "tests/models/test_qwen.py"),
    Family("Mixtral", "mixtral", ("MixtralForCausalLM",), (), "tests/models/test_moe.py"),
    Family(
        "Qwen2-MoE, Qwen3-MoE",
        "qwen_moe",
        ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"),
        (),
        "tests/models/test_moe.py",
    ),
    Family("Gemma 2", "gemma2", ("Gemma2ForCausalLM",), ("gemma2",), "tests/models/test_gemma.py"),
    Family(
        "Gemma 3 (text)",
        "gemma3",
        ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        ("gemma3",),
        "tests/models/test_gemma.py",
    ),
    Family("Phi-3, Phi-4", "phi3", ("Phi3ForCausalLM",), ("phi3",), "tests/models/test_phi3.py"),
    Family(
        "OLMo 2, OLMo 3",
        "olmo2",
        ("Olmo2ForCausalLM", "Olmo3ForCausalLM"),
        ("olmo2",),
        "tests/models/test_dense.py",
    ),
    Family("SmolLM3", "smollm3", ("SmolLM3ForCausalLM",), ("smollm3",), "tests/models/test_dense.py"),
    Family(
        "Granite (dense)",
        "granite",
        ("GraniteForCausalLM",),
        ("granite",),
        "tests/models/test_dense.py",
    ),
    Family(
        "Command A, Command R7B", "cohere2", ("Cohere2ForCausalLM",), (), "tests/models/test_dense.py"
    ),
    Family("GLM-4 (0414)", "glm4", ("Glm4ForCausalLM",), (), "tests/models/test_dense.py"),
    Family("StableLM", "stablelm", ("StableLmForCausalLM",), (), "tests/models/test_layer_norm.py"),
    Family(
        "StarCoder2", "starcoder2", ("Starcoder2ForCausalLM",), (), "tests/models/test_layer_norm.py"
    ),
    Family("GPT-2", "gpt2", ("GPT2LMHeadModel",), (), "tests/models/test_layer_norm.py"),
    Family(
        "GPT-NeoX, Pythia", "gpt_neox", ("GPTNeoXForCausalLM",), (), "tests/models/test_layer_norm.py"
    ),
    Family("GPT-J", "gptj", ("GPTJForCausalLM",), (), "tests/models/test_layer_norm.py"),
    Family("OPT", "opt", ("OPTForCausalLM",), (), "tests/models/test_layer_norm.py"),
    Family("Falcon", "falcon", ("FalconForCausalLM",), (), "tests/models/test_layer_norm.py"),
    Family("Bloom", "bloom", ("BloomForCausalLM",), (), "tests/models/test_layer_norm.py"),
    Family("Phi-1, Phi-2", "phi", ("PhiForCausalLM",), (), "tests/models/test_layer_norm.py"),
)


def family_of(config: dict[str, Any]) -> Family:
    """The family of a configuration. Raises CheckpointError listing what is supported."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    for family in FAMILIES:
        if name in family.architectures:
            return family
    supported = ", ".join(a for family in FAMILIES for a in family.architectures)
    found = f"architecture {name!r} is not supported" if name else "the model names no architecture"
    raise CheckpointError(f"{found}; supported are {supported}")


def build_model(
    checkpoint: Checkpoint,
    ops: OpTable,
    *,
    load: LoadConfig,
    max_tokens: int,
    max_logits: int,
    max_model_len: int | None,
    cache_dtype: CacheDType | torch.dtype,
    packed: PackedWeights | None = None,
) -> Model:
    """A model with its weights packed and its operators bound.

    max_tokens, max_logits: capacity of one step. max_model_len: None is the model's own limit.
    cache_dtype: "auto" follows the checkpoint: fp32 for fp32, bf16 for bf16, fp16 for everything else.
    packed: matrices that were packed before.

    Raises CheckpointError for unsupported architectures, configurations and tensors, ConfigError if
    max_model_len is more than the model can read, and LookupError if no provider runs an operator.
    """
    from tokenmill.models.decoder import BuildContext
    from tokenmill.models.loader import WeightLoader, resolve_cache_dtype

    family = family_of(checkpoint.config)
    context = BuildContext(
        ops=ops,
        weights=WeightLoader(checkpoint, ops, load, packed=packed),
        max_tokens=max_tokens,
        max_logits=max_logits,
        max_model_len=max_model_len,
        cache_dtype=resolve_cache_dtype(cache_dtype, checkpoint),
    )
    model: Model = importlib.import_module(f"tokenmill.models.{family.module}").build(
        checkpoint.config, context
    )
    return model
