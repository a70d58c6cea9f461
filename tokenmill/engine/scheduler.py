"""Which requests advance in a step, and by how many tokens.

There is one batch and no phases: a request takes part with as many tokens as it still has to compute
and the step's budget allows. Running requests that need one token go first, then longer ones, then
those that wait, so a long prompt costs the others at most one budget's worth of time per token.
"""

from __future__ import annotations

import heapq
import time
from typing import Literal

from tokenmill.cache.manager import CacheManager
from tokenmill.cache.prefix_index import PrefixHit
from tokenmill.engine.request import Request, Status
from tokenmill.errors import RequestError

Work = dict[Request, int]
"""Requests of a step in the order of the batch, and how many tokens each computes."""


class Scheduler:
    """First come first served, or by priority.

    max_tokens: budget of a step. max_logits: rows of logits in a step, at least max_seqs; what is
    beyond serves requests that ask for log-probabilities of their prompts.
    """

    def __init__(
        self,
        cache: CacheManager,
        *,
        max_tokens: int,
        max_seqs: int,
        max_logits: int,
        policy: Literal["fcfs", "priority"],
    ) -> None:
        self._cache = cache
        self._max_tokens = max_tokens
        self.max_seqs = max_seqs
        self._max_logits = max_logits
        self._by_priority = policy == "priority"
        self._waiting: list[tuple[tuple[int, int], Request]] = []
        self._num_waiting = 0
        self._arrivals = 0
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        # The step being put together.
        self._work: Work = {}
        self._tokens_left = 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return self._num_waiting

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running) or self._num_waiting > 0

    def next_order(self, priority: int) -> tuple[int, int]:
        """The place of a new request."""
        self._arrivals += 1
        return priority if self._by_priority else 0, self._arrivals

    def add(self, request: Request) -> None:
        """Let a request wait. Raises RequestError if it could never run, whatever else ends."""
        needed = self._cache.plan.blocks_held(request.max_total, self._max_tokens)
        if needed > self._cache.pool.num_blocks:
            raise RequestError(
                f"the request needs {needed} cache blocks for {request.max_total} tokens, but there "
                f"are only {self._cache.pool.num_blocks}; lower max_tokens, or give the cache more "
                "memory"
            )
        self._wait(request)

    def _wait(self, request: Request) -> None:
        request.status = Status.WAITING
        heapq.heappush(self._waiting, (request.order, request))
        self._num_waiting += 1

    def remove(self, request: Request) -> None:
        """Forget a request that has finished or is no longer wanted, and free its memory."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self._cache.release(request.blocks)
        elif request.status is Status.WAITING:
            self._num_waiting -= 1  # its entry in the heap is skipped when it comes up
            if self._num_waiting == 0:
                self._waiting.clear()
        request.status = Status.FINISHED

    def schedule(self) -> Work:
        """The next step: running requests by need, then waiting ones."""
        self._work = {}
        self._tokens_left = self._max_tokens
        longer: list[Request] = []
        for request in tuple(self.running):
            if len(request.tokens) - request.num_computed > 1:
                longer.append(request)
            elif request.status is Status.RUNNING:
                self._advance(request, 1)
        for request in longer:
            if self._tokens_left == 0:
                break
            if request.status is Status.RUNNING:
                self._advance(request, self._chunk(request))
        self._admit()
        return self._work

    def _chunk(self, request: Request) -> int:
        """How many tokens a request can compute within what is left of the step."""
        chunk = min(len(request.tokens) - request.num_computed, self._tokens_left)
        limit = self._cache.chunk_limit(request.blocks, request.num_computed)
        if limit is not None:
            chunk = min(chunk, limit)
        if request.wants_prompt_logprobs:
            # Everyone may need one row; only what is beyond that can be given away.
            spare = self._max_logits - self.max_seqs
            taken = sum(n - 1 for r, n in self._work.items() if r.wants_prompt_logprobs)
            chunk = min(chunk, 1 + spare - taken)
        return chunk

    def _advance(self, request: Request, num_tokens: int) -> None:
        """Give the request its tokens and blocks, taking them from the last in order if need be."""
        if num_tokens <= 0:
            return
        end = request.num_computed + num_tokens
        while not self._cache.grow(request.blocks, request.num_computed, end):
            victim = max(self.running, key=lambda r: r.order)
            self._preempt(victim)
            if victim is request:
                return
        self._work[request] = num_tokens
        self._tokens_left -= num_tokens

    def _preempt(self, victim: Request) -> None:
        """Take all memory from a running request; it will compute prompt and answer again."""
        self._tokens_left += self._work.pop(victim, 0)
        self.running.remove(victim)
        self._cache.release(victim.blocks)
        victim.start_over()
        self.num_preemptions += 1
        self._wait(victim)

    def _admit(self) -> None:
        """Start waiting requests, in order, while there is room for them."""
        deferred: list[Request] = []
        while self._tokens_left > 0 and self._num_waiting > len(deferred):
            request = self._waiting[0][1]
            if request.status is not Status.WAITING:
                heapq.heappop(self._waiting)
                continue
            if self._must_wait_for_leader(request):
                heapq.heappop(self._waiting)
                deferred.append(request)
                continue
            if not self._start(request):
                break
        for request in deferred:
            heapq.heappush(self._waiting, (request.order, request))

    def _must_wait_for_leader(self, request: Request) -> bool:
        leader = request.leader
        if leader is None or leader.prefilled or leader.status is Status.FINISHED:
            request.leader = None
            return False
        return self._cache.enable_prefix_caching

    def _start(self, request: Request) -> bool:
        """Start the first waiting request, unless it has to wait for memory or a place."""
        if self._chunk(request) <= 0:
            return False
        while True:
            if len(self.running) < self.max_seqs:
                hit = self._find_cached(request)
                length = min(len(request.tokens) + 1, request.max_total)
                if self._cache.can_start(hit, length, self._max_tokens, self._reserved()):
                    break
            if not self._make_way(request):
                return False
        heapq.heappop(self._waiting)
        self._num_waiting -= 1
        request.status = Status.RUNNING
        self.running.append(request)
        self._cache.start(request.blocks, hit, len(request.tokens))
        request.num_computed = hit.num_tokens if hit else 0
        if request.num_cached < 0:
            request.num_cached = request.num_computed
            self.prefix_queries += len(request.tokens)
            self.prefix_hits += request.num_cached
            now = time.monotonic()
            request.metrics.first_scheduled_time = now
            request.metrics.time_in_queue = now - request.metrics.arrival_time
        self._advance(request, self._chunk(request))
        return True

    def _find_cached(self, request: Request) -> PrefixHit | None:
        """What need not be computed. The last token always is: its logits are needed."""
        if request.needs_every_token:
            return None
        return self._cache.lookup(request.tokens, len(request.tokens) - 1, request.source.cache_extra)

    def _reserved(self) -> int:
        """Blocks that running requests will take until their present tokens are computed."""
        return sum(
            self._cache.missing_blocks(r.blocks, len(r.tokens), self._max_tokens)
            for r in self.running
            if len(r.tokens) - r.num_computed - self._work.get(r, 0) > 0
        )

    def _make_way(self, request: Request) -> bool:
        """Preempt a running request of a lower priority, if there is one."""
        if not self._by_priority or not self.running:
            return False
        victim = max(self.running, key=lambda r: r.order)
        if victim.order[0] <= request.order[0]:
            return False
        self._preempt(victim)
        return True
