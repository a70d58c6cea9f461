"""The engine's own thread: everything that touches the engine happens here."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from tokenmill.engine.core import Engine
from tokenmill.engine.outputs import EngineStats, PooledOutput, RequestFailed, TokenOutput
from tokenmill.engine.request import EngineRequest
from tokenmill.errors import EngineDeadError, TokenmillError

log = logging.getLogger("tokenmill.engine")


@dataclass(frozen=True)
class EngineStopped:
    """Nothing more will come, for any request."""

    error: EngineDeadError


Event = TokenOutput | PooledOutput | RequestFailed | EngineStopped
"""What the thread tells the front."""


@dataclass(frozen=True)
class _Add:
    requests: tuple[EngineRequest, ...]
    arrival_time: float


@dataclass(frozen=True)
class _Abort:
    request_ids: tuple[str, ...]


@dataclass(frozen=True)
class _GiveBack:
    done: Future[int]


class EngineThread:
    """Runs an engine; its methods may be called from any thread.

    deliver: called on the engine's thread with the events of a step; it must return quickly. While
    there is nothing to do the thread sleeps.
    """

    def __init__(self, engine: Engine, deliver: Callable[[list[Event]], None]) -> None:
        self._engine = engine
        self._deliver = deliver
        self._inbox: SimpleQueue[_Add | _Abort | _GiveBack | None] = SimpleQueue()
        self._error: EngineDeadError | None = None
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="tokenmill-engine", daemon=True)
        self._thread.start()

    @property
    def error(self) -> EngineDeadError | None:
        """Why the engine is dead; None while it lives."""
        return self._error

    @property
    def busy_s(self) -> float:
        """Seconds since the thread last made progress while it had work; 0 while it sleeps."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def add(self, requests: tuple[EngineRequest, ...]) -> None:
        """Queue requests. Raises EngineDeadError if the engine is dead."""
        if self._error is not None:
            raise self._error
        self._inbox.put(_Add(requests, time.monotonic()))

    def abort(self, request_ids: tuple[str, ...]) -> None:
        """Drop requests before the next step; unknown ones are ignored."""
        self._inbox.put(_Abort(request_ids))

    def give_back_memory(self) -> Future[int]:
        """Between two steps, have the engine do what its method of this name does."""
        done: Future[int] = Future()
        self._inbox.put(_GiveBack(done))
        if self._error is not None:
            self._refuse_orders()
        return done

    def stats(self) -> EngineStats:
        """Counters of this moment. What the engine has not taken up yet is waiting, too."""
        stats = self._engine.stats()
        return replace(stats, waiting=stats.waiting + self._inbox.qsize())

    def shutdown(self) -> None:
        """Stop after the present step; requests that were not finished fail. May be called twice."""
        self._inbox.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_orders():
                outputs = self._engine.step()
                if outputs:
                    self._deliver([*outputs])
            self._stop(EngineDeadError("the engine was shut down"))
        except BaseException as error:  # whatever ends this thread, nobody must wait for it
            log.exception("the engine stopped because of an internal error")
            self._stop(
                EngineDeadError(
                    f"the engine stopped because of an internal error ({error!r}); restart the process"
                )
            )

    def _stop(self, error: EngineDeadError) -> None:
        self._error = error
        self._busy_since = None
        self._deliver([EngineStopped(error)])
        self._refuse_orders()

    def _refuse_orders(self) -> None:
        """Nobody carries out what is still in the inbox. Additions have been told by EngineStopped."""
        with contextlib.suppress(Empty):
            while True:
                order = self._inbox.get_nowait()
                if isinstance(order, _GiveBack) and order.done.set_running_or_notify_cancel():
                    assert self._error is not None
                    order.done.set_exception(self._error)

    def _take_orders(self) -> bool:
        """Carry out what was asked since the last step, and wait if there is nothing else to do.

        False when it is time to stop."""
        failed: list[Event] = []
        try:
            while True:
                idle = not self._engine.has_work and not failed
                self._busy_since = None if idle else time.monotonic()
                order = self._inbox.get(block=idle)
                self._busy_since = time.monotonic()
                if order is None:
                    return False
                if isinstance(order, _Abort):
                    for request_id in order.request_ids:
                        self._engine.abort(request_id)
                elif isinstance(order, _GiveBack):
                    self._give_back(order.done)
                else:
                    failed += self._add(order)
        except Empty:
            return True
        finally:
            if failed:
                self._deliver(failed)

    def _give_back(self, done: Future[int]) -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            done.set_result(self._engine.give_back_memory())
        except TokenmillError as error:
            done.set_exception(error)

    def _add(self, order: _Add) -> list[RequestFailed]:
        failed = []
        for request in order.requests:
            try:
                self._engine.add_request(request, order.arrival_time)
            except TokenmillError as error:
                failed.append(RequestFailed(request.request_id, error))
        return failed
