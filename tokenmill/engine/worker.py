"""The engine's own thread: everything that touches the engine happens here."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from tokenmill.engine.core import Engine
from tokenmill.engine.outputs import EngineStats, PooledOutput, TokenOutput
from tokenmill.engine.request import EngineRequest
from tokenmill.errors import EngineDeadError, TokenmillError

log = logging.getLogger("tokenmill.engine")


@dataclass(frozen=True)
class RequestFailed:
    """One request was refused; others go on."""

    request_id: str
    error: TokenmillError


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


class EngineThread:
    """Runs an engine; its methods may be called from any thread.

    deliver: called on the engine's thread with the events of a step; it must return quickly. While
    there is nothing to do the thread sleeps.
    """

    def __init__(self, engine: Engine, deliver: Callable[[list[Event]], None]) -> None:
        self._engine = engine
        self._deliver = deliver
        self._inbox: SimpleQueue[_Add | _Abort | None] = SimpleQueue()
        self._error: EngineDeadError | None = None
        self._thread = threading.Thread(target=self._run, name="tokenmill-engine", daemon=True)
        self._thread.start()

    @property
    def error(self) -> EngineDeadError | None:
        """Why the engine is dead; None while it lives."""
        return self._error

    def add(self, requests: tuple[EngineRequest, ...]) -> None:
        """Queue requests. Raises EngineDeadError if the engine is dead."""
        if self._error is not None:
            raise self._error
        self._inbox.put(_Add(requests, time.monotonic()))

    def abort(self, request_ids: tuple[str, ...]) -> None:
        """Drop requests before the next step; unknown ones are ignored."""
        self._inbox.put(_Abort(request_ids))

    def stats(self) -> EngineStats:
        """Counters of this moment."""
        return self._engine.stats()

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
        except Exception as error:
            log.exception("the engine stopped because of an internal error")
            self._stop(
                EngineDeadError(
                    f"the engine stopped because of an internal error ({error!r}); restart the process"
                )
            )

    def _stop(self, error: EngineDeadError) -> None:
        self._error = error
        self._deliver([EngineStopped(error)])

    def _take_orders(self) -> bool:
        """Carry out what was asked since the last step, and wait if there is nothing else to do.

        False when it is time to stop."""
        failed: list[Event] = []
        try:
            while True:
                order = self._inbox.get(block=not self._engine.has_work and not failed)
                if order is None:
                    return False
                if isinstance(order, _Abort):
                    for request_id in order.request_ids:
                        self._engine.abort(request_id)
                else:
                    failed += self._add(order)
        except Empty:
            return True
        finally:
            if failed:
                self._deliver(failed)

    def _add(self, order: _Add) -> list[RequestFailed]:
        failed = []
        for request in order.requests:
            try:
                self._engine.add_request(request, order.arrival_time)
            except TokenmillError as error:
                failed.append(RequestFailed(request.request_id, error))
        return failed
