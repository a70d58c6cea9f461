"""A model whose logits are a function of what it reads back from its cache pages.

Layer 0 stores token ids; each later layer stores a number that depends on everything the layer below
saw through the block table. A wrong block, a stale or missing one, or a window that is too short
changes the tokens that come out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tokenmill.cache.manager import CacheManager
from tokenmill.cache.plan import CachePlan, plan_groups
from tokenmill.cache.spec import (
    BLOCK_SIZE,
    CacheSpec,
    FullAttentionSpec,
    RecurrentSpec,
    SlidingWindowSpec,
)
from tokenmill.engine.core import Engine, EngineLimits
from tokenmill.engine.outputs import PooledOutput, PositionLogprobs, TokenOutput
from tokenmill.engine.request import EngineRequest
from tokenmill.engine.runner import Runner
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.engine.scheduler import Scheduler
from tokenmill.engine.step import Cache, LayerCache, StateCache, StepBuffers

VOCAB = 211
EOS = 2
HIDDEN = 12
NUMBERS = 1021

FULL = FullAttentionSpec(1, 2, torch.float32)
WINDOW = SlidingWindowSpec(1, 2, torch.float32, 40)
SHORT = SlidingWindowSpec(1, 4, torch.float32, 5)
STATE = RecurrentSpec(64)
WIDE_STATE = RecurrentSpec(192)

LAYOUTS: dict[str, list[CacheSpec]] = {
    "full": [FULL, FULL],
    "sliding": [WINDOW, WINDOW],
    "mixed": [WINDOW, FULL, WINDOW, WINDOW, SHORT],
    "recurrent": [STATE, WIDE_STATE],
    "hybrid": [STATE, FULL, WIDE_STATE, WINDOW],
}

UNREAD = 0xFF
"""What freed blocks are filled with: reads of it fail the fake model's own check."""


class FakeModel:
    vocab_size = VOCAB
    hidden_size = HIDDEN
    max_position = 4096

    def __init__(self, specs: list[CacheSpec], max_logits: int) -> None:
        self._specs = specs
        self._logits = torch.zeros(max_logits, VOCAB)
        generator = torch.Generator().manual_seed(7)
        self._table = torch.randn(NUMBERS, VOCAB, generator=generator) * 2
        self._values: list[int] = []
        self.steps: list[int] = []

    def cache_specs(self) -> list[CacheSpec]:
        return self._specs

    def forward(self, step: StepBuffers, caches: Sequence[Cache]) -> torch.Tensor:
        count = int(step.num_tokens)
        self.steps.append(count)
        values = step.token_ids[:count].tolist()
        positions = step.positions[:count].tolist()
        owners = step.token_req[:count].tolist()
        self._check_offsets(step, owners)
        for cache in caches:
            layer = self._recur if isinstance(cache, StateCache) else self._layer
            values = layer(cache, values, positions, owners)
        self._values = values
        rows = step.logit_rows[: int(step.num_logits)].tolist()
        for index, row in enumerate(rows):
            self._logits[index] = self._table[values[row] % NUMBERS] + self._table[values[row] % 1019]
        return self._logits

    def hidden_states(self, tokens: torch.Tensor) -> torch.Tensor:
        numbers = [self._values[token] % NUMBERS for token in tokens.tolist()]
        return self._table[numbers, :HIDDEN]

    @staticmethod
    def _check_offsets(step: StepBuffers, owners: list[int]) -> None:
        starts = step.query_start[: int(step.num_reqs) + 1].tolist()
        expected = [r for r, (a, b) in enumerate(itertools.pairwise(starts)) for _ in range(b - a)]
        assert expected == owners

    @staticmethod
    def _recur(
        cache: StateCache, values: list[int], positions: list[int], owners: list[int]
    ) -> list[int]:
        words = cache.pool.view(torch.int32).flatten()
        result = []
        for value, position, owner in zip(values, positions, owners, strict=True):
            at = (int(cache.slots[owner]) * cache.slot_bytes + cache.offset) // 4
            assert words[at] == position, "stale or foreign state"
            words[at] = position + 1
            words[at + 15] = hash((int(words[at + 15]), value)) % (2**31 - 1)
            result.append(int(words[at + 15]))
        return result

    @staticmethod
    def _layer(
        cache: LayerCache, values: list[int], positions: list[int], owners: list[int]
    ) -> list[int]:
        page = cache.num_kv_heads * cache.head_dim * BLOCK_SIZE * 2
        words = cache.pool.view(torch.int32)

        def place(owner: int, position: int) -> int:
            block = int(cache.block_table[owner, position // BLOCK_SIZE])
            assert block >= 0, "read of a block that the window has left"
            return (block * cache.block_bytes + cache.offset) // 4 + position % BLOCK_SIZE

        for value, position, owner in zip(values, positions, owners, strict=True):
            at = place(owner, position)
            words[at] = value
            words[at + page - BLOCK_SIZE] = position
        result = []
        for position, owner in zip(positions, owners, strict=True):
            first = max(0, position - cache.window + 1) if cache.window else 0
            seen = []
            for start in range(first - first % BLOCK_SIZE, position + 1, BLOCK_SIZE):
                at = place(owner, start)
                low, high = max(first, start), min(position + 1, start + BLOCK_SIZE)
                seen += words[at + low - start : at + high - start].tolist()
                where = words[at + page - BLOCK_SIZE :][low - start : high - start].tolist()
                assert where == list(range(low, high)), "stale or foreign block"
            result.append(hash(tuple(seen)) % (2**31 - 1))
        return result


@dataclass
class Result:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    reason: str | None = None
    stop_reason: int | None = None
    cached: int = 0
    token_steps: list[int] = field(default_factory=list)
    embedding: list[float] | None = None


class Bench:
    """An engine over a fake model, and what came out of it. Freed blocks are poisoned at every step."""

    def __init__(
        self,
        specs: list[CacheSpec] | str = "full",
        *,
        num_blocks: int = 400,
        num_slots: int = 24,
        max_tokens: int = 64,
        max_seqs: int = 8,
        spare_logits: int = 8,
        max_model_len: int = 512,
        policy: str = "fcfs",
        prefix_caching: bool = True,
        recorder: object = None,
    ) -> None:
        specs = LAYOUTS[specs] if isinstance(specs, str) else specs
        self.plan: CachePlan = plan_groups(specs)
        max_logits = max_seqs + spare_logits
        self.model = FakeModel(specs, max_logits)
        self.runner = Runner(
            self.model,
            self.plan,
            num_blocks=num_blocks if self.plan.groups else 0,
            num_slots=num_slots if self.plan.states else 0,
            max_tokens=max_tokens,
            max_seqs=max_seqs,
            max_logits=max_logits,
            max_model_len=max_model_len,
            recorder=recorder,
        )
        self.runner.pool.fill_(UNREAD)
        self.runner.states.fill_(UNREAD)
        self.cache = CacheManager(
            self.plan,
            num_blocks if self.plan.groups else 0,
            num_slots if self.plan.states else 0,
            enable_prefix_caching=prefix_caching,
        )
        self.scheduler = Scheduler(
            self.cache,
            max_tokens=max_tokens,
            max_seqs=max_seqs,
            max_logits=max_logits,
            policy=policy,
        )
        limits = EngineLimits(VOCAB, max_model_len, HIDDEN)
        self.engine = Engine(self.runner, self.scheduler, self.cache, limits)
        self.results: dict[str, Result] = {}
        self.num_steps = 0

    def add(
        self, name: str, prompt: Sequence[int], params: SamplingParams | None = None, **kwargs: object
    ) -> None:
        request = EngineRequest(
            name,
            list(prompt),
            params or SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
            **{"seed": 1, "eos_ids": frozenset({EOS}), **kwargs},
        )
        self.engine.add_request(request)
        self.results[name] = Result()

    def step(self) -> list[TokenOutput | PooledOutput]:
        outputs = self.engine.step()
        self.num_steps += 1
        for out in outputs:
            result = self.results[out.request_id]
            result.cached = out.num_cached_tokens
            if isinstance(out, PooledOutput):
                result.embedding = out.embedding
                continue
            result.tokens += out.token_ids
            result.logprobs += out.logprobs or []
            if out.prompt_logprobs is not None:
                result.prompt_logprobs = out.prompt_logprobs
            result.reason, result.stop_reason = out.finish_reason, out.stop_reason
            result.token_steps.append(self.num_steps)
        self.poison()
        return outputs

    def poison(self) -> None:
        """Overwrite every block and state that nobody holds and nobody may find."""
        for slot in range(self.cache.states.num_slots):
            if self.cache.states.is_blank(slot):
                self.runner.states[slot] = UNREAD
        if not self.plan.groups:
            return
        pool = self.runner.pool.view(-1, self.plan.block_bytes)
        for block in range(self.cache.pool.num_blocks):
            if not self.cache.pool.references(block) and not self.cache.pool.is_cached(block):
                pool[block] = UNREAD

    def run(self, limit: int = 5000) -> dict[str, Result]:
        while self.engine.has_work:
            assert self.num_steps < limit, "the engine does not come to an end"
            self.step()
        return self.results

    def assert_all_free(self) -> None:
        pool = self.cache.pool
        assert self.cache.states.num_free == self.cache.states.num_slots
        assert pool.num_free == pool.num_blocks
        assert all(pool.references(block) == 0 for block in range(pool.num_blocks))


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(3, VOCAB, (length,), generator=generator).tolist()
    return tokens
