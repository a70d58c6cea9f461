"""Runs a model by hand: step buffers, a pool of pages and block tables, without an engine.

``OurModel`` keeps what a request has computed in pages and slots, as the engine would; pools start as
NaN and blocks are handed out in a scattered order, so whatever reads a place that it should not is
noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tokenmill.cache.plan import plan_groups
from tokenmill.config import LoadConfig
from tokenmill.engine.runner import layer_caches
from tokenmill.engine.step import StepBuffers
from tokenmill.models.decoder import Model
from tokenmill.models.registry import build_model
from tokenmill.ops.table import OpTable
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.tensor import RawTensor

BLOCK = 16
ATOL, RTOL = 2e-4, 1e-4
"""How close to transformers, in fp32, logits have to be."""

FORMATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def raw_tensor(name: str, values: Tensor) -> RawTensor:
    """A tensor as a checkpoint would hold it."""
    data = values.detach().contiguous().view(torch.uint8).flatten()
    return RawTensor(name, FORMATS[values.dtype], tuple(values.shape), data)


@dataclass
class MemoryCheckpoint:
    """A checkpoint that never was a file; tests edit it to break it."""

    config: dict[str, Any]
    tensors: dict[str, RawTensor]
    path: Path = Path("/memory")
    kind: Literal["safetensors", "gguf"] = "safetensors"
    generation_config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    norm_offset_applied: bool = False

    def names(self) -> Collection[str]:
        return self.tensors.keys()

    def get(self, name: str) -> RawTensor:
        return self.tensors[name]

    def drop_pages(self) -> None:
        """There is no file behind the tensors."""

    def close(self) -> None:
        self.tensors.clear()


def memory_checkpoint(hf: Any) -> MemoryCheckpoint:
    """The checkpoint of a transformers model; tied copies are left out, as its own files do."""
    state = hf.state_dict()
    if hf.config.get_text_config().tie_word_embeddings:
        state = {name: value for name, value in state.items() if name != "lm_head.weight"}
    tensors = {name: raw_tensor(name, value) for name, value in state.items()}
    config = hf.config.to_dict() | {"architectures": [type(hf).__name__]}
    return MemoryCheckpoint(config, tensors)


def saved(hf: Any, path: Path) -> Checkpoint:
    """The checkpoint that transformers writes (``save_pretrained``) and we read."""
    hf.save_pretrained(path)
    return open_checkpoint(path)


def randomise(hf: Any, seed: int = 0) -> Any:
    """Weights large enough that every part of the model matters to its logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in hf.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if value.dim() == 2:
                value.copy_(noise * 1.3 / value.shape[1] ** 0.5)
            elif "norm" in name:
                value.add_(noise * 0.2)
            else:
                value.copy_(noise * 0.3)
    return hf.eval()


@dataclass
class Request:
    """Tokens of which the first ``computed`` are remembered. tables: one per cache group. slot: of its
    recurrent state."""

    tokens: list[int]
    tables: list[list[int]]
    slot: int
    computed: int = 0


class OurModel:
    """A model built by ``build_model``, and the memory to run it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        ops: OpTable,
        *,
        load: LoadConfig | None = None,
        max_model_len: int | None = None,
        max_tokens: int = 128,
        max_blocks: int = 16,
        cache_dtype: Any = "auto",
    ) -> None:
        self.model: Model = build_model(
            checkpoint,
            ops,
            load=load or LoadConfig("test"),
            max_tokens=max_tokens,
            max_logits=max_tokens,
            max_model_len=max_model_len,
            cache_dtype=cache_dtype,
        )
        plan = plan_groups(self.model.cache_specs())
        self.groups = plan.groups
        self.step = StepBuffers.allocate(
            max_tokens=max_tokens,
            max_reqs=8,
            max_logits=max_tokens,
            max_blocks=max_blocks,
            num_groups=len(plan.groups),
        )
        num_blocks = 8 * max_blocks * len(plan.groups)
        pool = torch.full((num_blocks * plan.block_bytes,), 0xFF, dtype=torch.uint8)
        self.states = torch.full((8, plan.slot_bytes), 0xFF, dtype=torch.uint8)
        self.caches = layer_caches(plan, pool, self.states, self.step)
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1))
        self.free: list[int] = order.tolist()
        self.free_slots = [3, 0, 6, 5, 1, 7, 2, 4]

    def start(self, tokens: Sequence[int]) -> Request:
        """A new request of which nothing is computed."""
        slot = self.free_slots.pop()
        self.states[slot] = 0
        return Request(list(tokens), [[] for _ in self.groups], slot)

    def finish(self, request: Request) -> None:
        """Give its memory back; the contents of blocks stay, those of a slot turn to NaN."""
        for table in request.tables:
            self.free.extend(block for block in table if block >= 0)
        self.states[request.slot] = 0xFF
        self.free_slots.insert(0, request.slot)

    def run(self, work: Sequence[tuple[Request, int]]) -> list[Tensor]:
        """Compute the next n tokens of each request in one step; their logits, [n, vocab] each."""
        step, at = self.step, 0
        for index, (request, n) in enumerate(work):
            positions = range(request.computed, request.computed + n)
            step.query_start[index] = at
            step.token_ids[at : at + n] = torch.tensor(request.tokens[positions.start : positions.stop])
            step.positions[at : at + n] = torch.tensor(positions)
            step.token_req[at : at + n] = index
            step.state_slots[index] = request.slot
            for group, table, buffer in zip(
                self.groups, request.tables, step.block_tables, strict=True
            ):
                while len(table) * BLOCK < positions.stop:
                    table.append(self.free.pop())
                self._leave_behind(table, group.window, positions.start)
                buffer[index] = -1
                buffer[index, : len(table)] = torch.tensor(table)
            request.computed = positions.stop
            at += n
        step.query_start[len(work)] = at
        step.num_tokens[0], step.num_reqs[0], step.num_logits[0] = at, len(work), at
        step.logit_rows[:at] = torch.arange(at)
        logits = self.model.forward(step, self.caches)[:at].clone()
        return list(logits.split([n for _, n in work]))

    def _leave_behind(self, table: list[int], window: int, position: int) -> None:
        """Free the blocks that no token from ``position`` on can see."""
        for index in range(max(0, position - window + 1) // BLOCK if window else 0):
            if table[index] >= 0:
                self.free.insert(0, table[index])
                table[index] = -1

    def logits(self, tokens: Sequence[int], chunks: Sequence[int] | None = None) -> Tensor:
        """Logits of every token, [n, vocab], computed in chunks of the given sizes."""
        request = self.start(tokens)
        parts = [self.run([(request, n)])[0] for n in chunks or [len(tokens)]]
        assert request.computed == len(tokens)
        self.finish(request)
        return torch.cat(parts)

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """The n most likely next tokens, one after another."""
        request = self.start(prompt)
        logits = self.run([(request, len(prompt))])[0]
        for _ in range(n - 1):
            request.tokens.append(int(logits[-1].argmax()))
            logits = self.run([(request, 1)])[0]
        self.finish(request)
        return [*request.tokens[len(prompt) :], int(logits[-1].argmax())]


def prompt_of(vocab_size: int, n: int, seed: int = 0) -> list[int]:
    """n random tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, vocab_size, (n,), generator=generator).tolist()
    return tokens


@torch.no_grad()
def hf_logits(hf: Any, tokens: Sequence[int]) -> Tensor:
    """fp32 [n, vocab] by transformers."""
    logits: Tensor = hf(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0].float()
    return logits


def hf_greedy(hf: Any, prompt: Sequence[int], n: int) -> list[int]:
    """The n most likely next tokens by transformers, each from the whole text anew."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(hf_logits(hf, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def assert_same_as_transformers(
    hf: Any, ours: OurModel, *, prompt_len: int = 45, steps: int = 32
) -> None:
    """Logits within tolerance, greedy tokens equal."""
    prompt = prompt_of(hf.config.get_text_config().vocab_size, prompt_len)
    expected = hf_logits(hf, prompt)
    assert expected.std() > 0.5, "logits this flat would hide errors"
    torch.testing.assert_close(ours.logits(prompt), expected, atol=ATOL, rtol=RTOL)
    assert ours.greedy(prompt, steps) == hf_greedy(hf, prompt, steps)


def assert_results_belong_to_requests(ours: OurModel, *, prompt_len: int = 45) -> None:
    """The same bits in one chunk, in odd chunks, and beside other requests."""
    prompts = [prompt_of(ours.model.vocab_size, n, seed) for seed, n in enumerate((prompt_len, 20, 33))]
    alone = [ours.logits(prompt) for prompt in prompts]
    assert all(bool(torch.isfinite(logits).all()) for logits in alone)

    chunks = [1, 2, 14, 16, 3]
    chunked = ours.logits(prompts[0], [*chunks, prompt_len - sum(chunks)])
    assert torch.equal(chunked, alone[0])

    requests = [ours.start(prompt) for prompt in prompts]
    parts: list[list[Tensor]] = [[], [], []]
    for work in ([(0, 7), (1, 20)], [(2, 1), (0, 1)], [(0, 30), (2, 32)], [(0, prompt_len - 38)]):
        results = ours.run([(requests[index], n) for index, n in work])
        for (index, _), logits in zip(work, results, strict=True):
            parts[index].append(logits)
    for request, pieces, expected in zip(requests, parts, alone, strict=True):
        assert request.computed == len(request.tokens)
        assert torch.equal(torch.cat(pieces), expected)
        ours.finish(request)
