"""From a configuration to a running engine: the one place where the rooms are wired together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tokenmill import __version__
from tokenmill.cache.manager import CacheManager
from tokenmill.cache.memory import MemoryPlan, available_memory, plan_memory
from tokenmill.cache.plan import plan_groups
from tokenmill.config import ComputeConfig, EngineConfig, LoadConfig
from tokenmill.engine.core import Engine, EngineLimits
from tokenmill.engine.front import Front
from tokenmill.engine.pooling import Pooling
from tokenmill.engine.runner import Recorder, Replay, Runner
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.engine.scheduler import Scheduler
from tokenmill.engine.text import AnswerText, MakeTextStream
from tokenmill.errors import ConfigError, RequestError
from tokenmill.hardware import ThreadChoice, choose_threads, read_cpu
from tokenmill.models.packed_weights import PackedWeights, open_packed_weights
from tokenmill.models.registry import build_model
from tokenmill.ops.choice import ChoiceFile, KernelChoices, read_choices
from tokenmill.ops.native import NativeProvider, load_provider
from tokenmill.ops.reference import ReferenceProvider
from tokenmill.ops.rivals import RivalChoices, Rivals
from tokenmill.ops.table import OpTable, Provider
from tokenmill.ops.zentorch import load_zentorch
from tokenmill.tokenizer import (
    IncrementalDetokenizer,
    StopStringChecker,
    Tokenizer,
    load_tokenizer,
)
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.model_cache import home
from tokenmill.weights.packed_cache import PackedCache
from tokenmill.weights.packed_directory import packed_directory
from tokenmill.weights.safetensors_file import read_json_file
from tokenmill.weights.sources import resolve

if TYPE_CHECKING:
    from tokenmill.engine.grammars import Grammars
    from tokenmill.models.decoder import Model

log = logging.getLogger("tokenmill.engine")

GGUF_MEAN_POOLING = 1
POOLING_FILE = "1_Pooling/config.json"

CHOICES = "kernel_choices.json"
"""File in the directory of models and caches."""

SPARE_LOGITS = 64
"""Rows of logits beyond one for each request: how fast log-probabilities of prompts are computed."""


@dataclass(frozen=True)
class Operators:
    """The operator table, and what came of each provider that was asked for.

    native: the provider that can record, if it works. rivals: providers that are used where they
    measure faster.
    """

    table: OpTable
    native: NativeProvider | None
    notes: tuple[str, ...]
    rivals: Rivals

    def recorder(self) -> Recorder | None:
        """Something that records forward steps, if every operator is native."""
        if self.native is None or any(provider != "native" for *_, provider in self.table.chosen):
            return None
        return NativeRecorder(self.native)


@dataclass(frozen=True)
class BuiltEngine:
    """An engine and what was decided while it was built.

    packed: what came of the cache of packed weights. load_s: seconds that the load took.
    """

    engine: Engine
    front: Front
    tokenizer: Tokenizer | None
    checkpoint: Checkpoint
    memory: MemoryPlan
    operators: Operators
    threads: ThreadChoice
    load_s: float
    packed: str = "off"


class NativeRecorder:
    """Records a forward step of native operators."""

    def __init__(self, provider: NativeProvider) -> None:
        self._provider = provider

    def record(self, forward: Callable[[], object]) -> Replay:
        """The whole step as one native call."""
        return self._provider.record(forward)


def choose_operators(compute: ComputeConfig, threads: ThreadChoice) -> Operators:
    """The providers in order of preference, the reference last.

    Raises ConfigError for an unknown name.
    """
    providers: list[Provider] = []
    rivals: list[Provider] = []
    native: NativeProvider | None = None
    notes: list[str] = []
    known = _known_choices(compute, threads)
    for name in dict.fromkeys((*compute.providers, "reference")):
        if name == "reference":
            providers.append(ReferenceProvider())
        elif name == "native":
            native, reason = load_provider(
                threads.count,
                threads.cpus,
                make_choices=partial(KernelChoices, known=known, measures=compute.measure),
            )
            notes.append(f"native: {reason}")
            if native is None:
                log.warning("native operators are not used: %s", reason)
            else:
                providers.append(native)
        elif name == "zentorch":
            zentorch, reason = load_zentorch(threads.count)
            notes.append(f"zentorch: {reason}")
            if zentorch is not None and not any(p.name == "reference" for p in providers):
                rivals.append(zentorch)
        else:
            raise ConfigError(
                f"there is no operator provider {name!r}; choose native, reference or zentorch"
            )
    contest = Rivals(rivals, RivalChoices(known, compute.measure))
    return Operators(OpTable(providers, contest), native, tuple(notes), contest)


def _known_choices(compute: ComputeConfig, threads: ThreadChoice) -> dict[str, tuple[str, ...]]:
    """What is known of this machine, and what is pinned."""
    known = _choice_file(threads).load() if compute.measure else {}
    if compute.operator_choices is not None:
        known |= read_choices(compute.operator_choices)
    return known


def _choice_file(threads: ThreadChoice) -> ChoiceFile:
    """Where choices of this machine are kept."""
    machine = f"{read_cpu().model}, {threads.count} threads, tokenmill {__version__}"
    return ChoiceFile(home() / CHOICES, machine)


def build_engine(config: EngineConfig, *, progress: bool = True) -> BuiltEngine:
    """Find, load and prepare the model that ``config`` names.

    progress: whether downloads show a progress bar. Raises SourceError, CheckpointError or ConfigError.
    """
    started = time.monotonic()
    threads = choose_threads(config.compute.num_threads)
    checkpoint = open_checkpoint(resolve(config.load.model, progress=progress))
    operators = choose_operators(config.compute, threads)
    # With native operators, torch only samples: its own threads would spin where ours compute.
    torch.set_num_threads(threads.count if operators.native is None else 1)
    packed = _packed_weights(config.load, checkpoint, operators.native)
    model = build_model(
        checkpoint,
        operators.table,
        load=config.load,
        max_tokens=config.scheduler.max_num_batched_tokens,
        max_logits=config.scheduler.max_num_seqs + SPARE_LOGITS,
        max_model_len=config.scheduler.max_model_len,
        cache_dtype=config.cache.cache_dtype,
        packed=packed,
    )
    _keep_choices(operators, threads)
    recorder = operators.recorder() if config.compute.record else None
    engine, memory = assemble(model, config, recorder, available_memory())
    for line in memory.describe():
        log.info("%s", line)
    tokenizer = load_tokenizer(checkpoint)
    eos_ids = end_ids(checkpoint.generation_config, checkpoint.config)
    if packed is not None:
        packed.keep()
    return BuiltEngine(
        engine=engine,
        front=Front(
            tokenizer,
            text_streams(tokenizer),
            engine.limits,
            eos_ids | tokenizer.eos_token_ids,
            recommended_params(checkpoint.generation_config),
            recommended_pooling(checkpoint),
            grammars_of(tokenizer, model.vocab_size, eos_ids | tokenizer.eos_token_ids),
        ),
        tokenizer=tokenizer,
        checkpoint=checkpoint,
        memory=memory,
        operators=operators,
        packed="off" if packed is None else packed.describe(),
        threads=threads,
        load_s=time.monotonic() - started,
    )


def _keep_choices(operators: Operators, threads: ThreadChoice) -> None:
    """Keeps what was measured now for the next load."""
    native = operators.native
    asked = [operators.rivals.choices, native.choices if native is not None else None]
    measured = [choices for choices in asked if choices is not None and choices.measured]
    if measured:
        _choice_file(threads).save(measured[0].known)  # they share what they know


def _packed_weights(
    load: LoadConfig, checkpoint: Checkpoint, native: NativeProvider | None
) -> PackedWeights | None:
    if native is None or not load.packed_cache:
        return None
    cache = PackedCache(packed_directory(), load.packed_cache_bytes)
    return open_packed_weights(cache, checkpoint, load, native)


def assemble(
    model: Model, config: EngineConfig, recorder: Recorder | None, available_bytes: int
) -> tuple[Engine, MemoryPlan]:
    """An engine for a model that is built, and its memory. Raises ConfigError if that is too little."""
    max_tokens = config.scheduler.max_num_batched_tokens
    max_seqs = config.scheduler.max_num_seqs
    max_logits = max_seqs + SPARE_LOGITS
    plan = plan_groups(model.cache_specs())
    memory = plan_memory(
        plan,
        cache=config.cache,
        scheduler=config.scheduler,
        model_limit=model.max_position,
        available_bytes=available_bytes,
    )
    runner = Runner(
        model,
        plan,
        num_blocks=memory.num_blocks,
        num_slots=memory.num_slots,
        max_tokens=max_tokens,
        max_seqs=max_seqs,
        max_logits=max_logits,
        max_model_len=memory.max_model_len,
        recorder=recorder,
    )
    cache = CacheManager(
        plan,
        memory.num_blocks,
        memory.num_slots,
        enable_prefix_caching=config.cache.enable_prefix_caching,
    )
    scheduler = Scheduler(
        cache,
        max_tokens=max_tokens,
        max_seqs=max_seqs,
        max_logits=max_logits,
        policy=config.scheduler.policy,
    )
    limits = EngineLimits(model.vocab_size, memory.max_model_len, model.hidden_size)
    return Engine(runner, scheduler, cache, limits), memory


def text_streams(tokenizer: Tokenizer) -> MakeTextStream:
    """Makes the text of answers, with their stop texts."""

    def make(params: SamplingParams, prompt: Sequence[int]) -> AnswerText:
        return AnswerText(
            IncrementalDetokenizer(
                tokenizer,
                skip_special_tokens=params.skip_special_tokens,
                shown_token_ids=params.shown_token_ids or (),
                prompt_token_ids=prompt,
            ),
            StopStringChecker(
                params.stop or (), include_stop_str_in_output=params.include_stop_str_in_output
            ),
            params.min_tokens,
        )

    return make


def grammars_of(
    tokenizer: Tokenizer, vocab_size: int, eos_ids: frozenset[int]
) -> Callable[[], Grammars]:
    """Makes what gives answers their form; that library is loaded when it is first needed."""

    def make() -> Grammars:
        from tokenmill.engine.grammars import Grammars

        if not eos_ids:
            raise RequestError("this model names no token that ends an answer, so no form can end")
        return Grammars(tokenizer, vocab_size, eos_ids)

    return make


def recommended_params(generation_config: Mapping[str, Any]) -> SamplingParams:
    """The sampling parameters that a generation_config.json recommends; invalid ones are ignored."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    found = {name: generation_config[name] for name in names if generation_config.get(name) is not None}
    if generation_config.get("do_sample") is False:
        found = {"temperature": 0.0}
    try:
        return SamplingParams(**found)
    except RequestError as error:
        log.warning("the model's recommended sampling parameters are ignored: %s", error)
        return SamplingParams()


def recommended_pooling(checkpoint: Checkpoint) -> Pooling:
    """How vectors of texts are made: as GGUF metadata say (pooling type 1: mean, 3: last), or the file
    that sentence-transformers writes beside a model; "last" where neither says so.
    """
    metadata = checkpoint.metadata
    mean = metadata.get(f"{metadata.get('general.architecture')}.pooling_type") == GGUF_MEAN_POOLING
    written = checkpoint.path / POOLING_FILE
    if written.is_file():
        mean = read_json_file(written).get("pooling_mode_mean_tokens") is True
    return "mean" if mean else "last"


def end_ids(*configs: Mapping[str, Any]) -> frozenset[int]:
    """Tokens that end an answer, as the first configuration that names any says."""
    for config in configs:
        value = config.get("eos_token_id")
        if isinstance(value, int):
            return frozenset({value})
        if isinstance(value, Sequence) and value:
            return frozenset(token for token in value if isinstance(token, int))
    return frozenset()
