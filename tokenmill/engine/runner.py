"""Runs the model over a step: fills the buffers, and replays the recorded program if there is one."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch

from tokenmill.cache.plan import CachePlan, blocks_of
from tokenmill.cache.state_pool import Move
from tokenmill.engine.int_view import int_view
from tokenmill.engine.request import Request
from tokenmill.engine.step import Cache, LayerCache, StateCache, StepBuffers
from tokenmill.engine.step_clock import StepClock
from tokenmill.errors import ConfigError
from tokenmill.ops.work import StepShape

if TYPE_CHECKING:
    from tokenmill.models.decoder import Model


class Replay(Protocol):
    """A recorded forward step."""

    def run(self) -> None:
        """Run it over what the step buffers hold."""
        ...

    def profile(self) -> list[tuple[str, int]]:
        """Run it, and return each operator's name and nanoseconds, in order."""
        ...


class Recorder(Protocol):
    """Turns a forward step into one native call."""

    def record(self, forward: Callable[[], object]) -> Replay | None:
        """Notes what ``forward`` would do, without doing it; None if it can't be replayed."""
        ...


@dataclass(frozen=True)
class Rows:
    """Which rows of a step's results a request has: start to stop, in order of position."""

    request: Request
    start: int
    stop: int


@dataclass(frozen=True)
class StepResult:
    """What a step computed, and which rows are whose.

    logits: fp32 [rows, vocab], valid until the next step. hidden: fp32 [rows, hidden_size], the final
    hidden states that requests pool; None if none does.
    """

    logits: torch.Tensor
    logit_rows: list[Rows]
    hidden: torch.Tensor | None
    hidden_rows: list[Rows]


class Runner:
    """Owns the pool, the step buffers and the model.

    num_blocks, num_slots: sizes of the pools. max_tokens, max_seqs, max_logits: capacities of a step.
    max_model_len: longest text.
    """

    def __init__(
        self,
        model: Model,
        plan: CachePlan,
        *,
        num_blocks: int,
        num_slots: int = 0,
        max_tokens: int,
        max_seqs: int,
        max_logits: int,
        max_model_len: int,
        recorder: Recorder | None = None,
    ) -> None:
        self._max_blocks = blocks_of(max_model_len)
        self.step = StepBuffers.allocate(
            max_tokens=max_tokens,
            max_reqs=max_seqs,
            max_logits=max_logits,
            max_blocks=self._max_blocks,
            num_groups=len(plan.groups),
        )
        # Left uninitialised: the system provides memory only for pages that are written.
        self.pool = torch.empty(num_blocks * plan.block_bytes, dtype=torch.uint8)
        self.states = torch.empty(num_slots, plan.slot_bytes, dtype=torch.uint8)
        self.caches = layer_caches(plan, self.pool, self.states, self.step)
        step = self.step
        self._num_tokens = int_view(step.num_tokens)
        self._num_reqs = int_view(step.num_reqs)
        self._num_logits = int_view(step.num_logits)
        self._token_ids = int_view(step.token_ids)
        self._positions = int_view(step.positions)
        self._token_req = int_view(step.token_req)
        self._query_start = int_view(step.query_start)
        self._logit_rows = int_view(step.logit_rows)
        self._tables = [int_view(table) for table in step.block_tables]
        self._state_slots = int_view(step.state_slots)
        self._counting = array("i", range(max(max_model_len, max_tokens) + 1))
        # Which version of whose table each row of the block tables holds.
        self._owners: list[tuple[Request | None, int]] = [(None, -1)] * max_seqs
        self._model = model
        self.clock = StepClock()
        self._recorder = recorder
        self._replay: Replay | None = None
        self._logits: torch.Tensor | None = None

    def move_states(self, moves: Sequence[Move]) -> None:
        """Copy or clear recurrent states, in order."""
        for move in moves:
            if move.source is None:
                self.states[move.target].zero_()
            else:
                self.states[move.target].copy_(self.states[move.source])

    def run(self, work: dict[Request, int]) -> StepResult:
        """Compute the given numbers of tokens of each request."""
        rows = self._fill(work)
        self.clock.lap("fill")
        logits = self._forward()
        self.clock.lap("forward")
        hidden, hidden_rows = self._hidden_states(work)
        return StepResult(logits[: rows[-1].stop if rows else 0], rows, hidden, hidden_rows)

    def _hidden_states(self, work: dict[Request, int]) -> tuple[torch.Tensor | None, list[Rows]]:
        """Of the tokens of this step that are pooled."""
        found: list[Rows] = []
        tokens: list[int] = []
        at = 0
        for request, count in work.items():
            at += count
            if request.pooling is not None:
                ends = request.num_computed + count == len(request.tokens)
                wanted = request.pooling.rows_wanted(count, ends=ends)
                if wanted:
                    found.append(Rows(request, len(tokens), len(tokens) + wanted))
                    tokens += range(at - wanted, at)
        return self._model.hidden_states(torch.tensor(tokens)) if tokens else None, found

    def _fill(self, work: dict[Request, int]) -> list[Rows]:
        token_ids, positions, token_req = self._token_ids, self._positions, self._token_req
        at = num_logits = 0
        found: list[Rows] = []
        for row, (request, count) in enumerate(work.items()):
            start, end = request.num_computed, request.num_computed + count
            if count == 1:
                token_ids[at] = request.tokens[start]
                positions[at] = start
                token_req[at] = row
            else:
                token_ids[at : at + count] = request.tokens[start:end]
                positions[at : at + count] = self._counting[start:end]
                token_req[at : at + count] = array("i", [row]) * count
            self._query_start[row] = at
            at += count
            wanted = count if request.wants_prompt_logprobs else int(end == len(request.tokens))
            if wanted and request.pooling is None:
                self._logit_rows[num_logits : num_logits + wanted] = self._counting[at - wanted : at]
                found.append(Rows(request, num_logits, num_logits + wanted))
                num_logits += wanted
            self._set_tables(row, request)
        self._query_start[len(work)] = at
        self._num_tokens[0] = at
        self._num_reqs[0] = len(work)
        self._num_logits[0] = num_logits
        return found

    def _set_tables(self, row: int, request: Request) -> None:
        """Copy the request's block tables to its row, if the row doesn't hold them already."""
        state = (request, request.blocks.version)
        if self._owners[row] == state:
            return
        self._owners[row] = state
        start = row * self._max_blocks
        for view, table in zip(self._tables, request.blocks.tables, strict=True):
            view[start : start + len(table)] = table
        self._state_slots[row] = request.blocks.state

    def _forward(self) -> torch.Tensor:
        if self._replay is not None:
            self._replay.run()
        elif self._recorder is not None:
            self._record(self._recorder)
        if self._replay is None:
            self._logits = self._model.forward(self.step, self.caches)
        assert self._logits is not None
        return self._logits

    def last_shape(self) -> StepShape:
        """How large the last step was."""
        starts = self._query_start[: self._num_reqs[0] + 1]
        return StepShape(
            spans=tuple(
                (self._positions[start], self._positions[end - 1]) for start, end in pairwise(starts)
            ),
            logits=self._num_logits[0],
        )

    def _record(self, recorder: Recorder) -> None:
        """Record the model once, and run this step from the recording."""
        self._recorder = None

        def forward() -> None:
            self._logits = self._model.forward(self.step, self.caches)

        self._replay = recorder.record(forward)
        if self._replay is not None:
            self._replay.run()

    def profile(self) -> list[tuple[str, int]]:
        """Run the last step's forward again, operator by operator: names and nanoseconds, in order.

        Changes nothing: what a step stores, it stores at the same places. Raises ConfigError if the
        steps are not recorded.
        """
        if self._replay is None:
            raise ConfigError(
                "only native operators can be profiled, and this model does not run on them alone; "
                "'tokenmill info MODEL' says why"
            )
        return self._replay.profile()


def layer_caches(
    plan: CachePlan, pool: torch.Tensor, states: torch.Tensor, step: StepBuffers
) -> Sequence[Cache]:
    """What each layer is handed: its view of its pool, in layer order."""
    caches: dict[int, Cache] = {
        slot.layer: StateCache(states, plan.slot_bytes, slot.offset, step.state_slots)
        for slot in plan.states
    }
    for group, table in zip(plan.groups, step.block_tables, strict=True):
        for slot in group.slots:
            caches[slot.layer] = LayerCache(
                pool=pool,
                block_bytes=plan.block_bytes,
                offset=slot.offset,
                block_table=table,
                num_kv_heads=group.spec.num_kv_heads,
                head_dim=group.spec.head_dim,
                dtype=group.spec.dtype,
                window=group.window,
            )
    return [caches[layer] for layer in sorted(caches)]
