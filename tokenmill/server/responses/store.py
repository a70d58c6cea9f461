"""Keeps responses in memory, so that later requests can continue or fetch them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenmill.server.connection import encode_json
from tokenmill.server.errors import ApiError
from tokenmill.server.responses.items import Item

MAX_RESPONSES = 4096
KEPT_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Stored:
    """A response that has ended.

    answer: as clients see it. items: its input. history: the items of all earlier turns. num_bytes: of
    all that as JSON.
    """

    answer: dict[str, Any]
    items: list[Item]
    history: list[Item]
    num_bytes: int

    @property
    def conversation(self) -> list[Item]:
        """The items of all turns up to this one."""
        return [*self.history, *self.items, *self.answer["output"]]


class ResponseStore:
    """Forgets the responses that were not used for longest once there are too many, or too large ones.

    max_bytes: of all as JSON. Each counts with its whole history, although turns of a conversation
    share theirs, so that the limit also holds when only the last turn is left. kept_seconds: a
    response that is older is forgotten. clock: seconds.

    For one thread.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        max_responses: int = MAX_RESPONSES,
        kept_seconds: float = KEPT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._entries: OrderedDict[str, tuple[Stored, float]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        """Of all that is kept."""
        return self._bytes

    def add(self, answer: dict[str, Any], items: list[Item], previous: Stored | None) -> None:
        """Keep an answer and its input, unless they alone are larger than all may be.

        previous: the response that it continues.
        """
        history = previous.conversation if previous is not None else []
        size = len(encode_json([answer, items])) + (previous.num_bytes if previous is not None else 0)
        self._expire()
        if size > self._max_bytes:
            return
        stored = Stored(answer, items, history, size)
        self._entries[answer["id"]] = (stored, self._clock() + self._kept_seconds)
        self._bytes += size
        while len(self._entries) > self._max_responses or self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def get(self, response_id: str, param: str | None = None) -> Stored:
        """Raises ApiError (404) if it is not, or no longer, there. param: the field that names it."""
        self._expire()
        if response_id not in self._entries:
            raise ApiError(
                f"there is no response {response_id!r}: it was not stored, or forgotten since; send "
                "the whole conversation as input",
                status=404,
                kind="not_found_error",
                param=param,
                code="response_not_found",
            )
        self._entries.move_to_end(response_id)
        return self._entries[response_id][0]

    def remove(self, response_id: str) -> None:
        """Raises ApiError (404) if it is not there. Responses that continue it are kept."""
        self.get(response_id)
        self._drop(response_id)

    def _expire(self) -> None:
        now = self._clock()
        for response_id in [key for key, (_, end) in self._entries.items() if end <= now]:
            self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        self._bytes -= self._entries.pop(response_id)[0].num_bytes
