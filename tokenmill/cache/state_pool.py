"""Slots for recurrent states: those of running requests, and snapshots kept for later ones.

Snapshots fill whatever running requests leave free. The one of least value goes first, by the
GreedyDual rule (Young, "The k-server dual and loose competitiveness for paging", 1994): a snapshot is
worth the tokens that it saves, on top of what the last one that had to go was worth, so what is neither
found again nor saves much falls behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Move:
    """Something to be done to slots. source: None fills ``target`` with zeros."""

    source: int | None
    target: int


@dataclass
class _Snapshot:
    saves: int
    worth: int


class StatePool:
    """Hands out slot numbers 0 to num_slots - 1.

    ``on_evict(slot)`` is called before a snapshot's slot is given away.
    """

    def __init__(self, num_slots: int, on_evict: Callable[[int], None]) -> None:
        self.num_slots = num_slots
        self._on_evict = on_evict
        self._blank = list(range(num_slots - 1, -1, -1))
        self._snapshots: dict[int, _Snapshot] = {}
        self._floor = 0
        self._moves: list[Move] = []

    @property
    def num_free(self) -> int:
        """Slots that can be allocated now, snapshots included."""
        return len(self._blank) + len(self._snapshots)

    @property
    def num_snapshots(self) -> int:
        """Snapshots that are kept."""
        return len(self._snapshots)

    def is_blank(self, slot: int) -> bool:
        """Whether a slot holds nothing that anyone may read."""
        return slot in self._blank

    def allocate(self, source: int | None) -> int:
        """A slot for a copy of slot ``source``, or for zeros. Raises IndexError if none is free."""
        if self._blank:
            slot = self._blank.pop()
        elif self._snapshots:
            slot = min(self._snapshots, key=lambda s: self._snapshots[s].worth)
            self._floor = self._snapshots.pop(slot).worth
            self._on_evict(slot)
        else:
            raise IndexError("no slot is free")
        if slot != source:
            self._moves.append(Move(source, slot))
        return slot

    def keep(self, slot: int, saves: int) -> None:
        """Make a snapshot of an allocated slot. saves: tokens not to be computed if it is found."""
        self._snapshots[slot] = _Snapshot(saves, self._floor + saves)

    def touch(self, slot: int) -> None:
        """A snapshot was found by a request."""
        snapshot = self._snapshots[slot]
        snapshot.worth = self._floor + snapshot.saves

    def release(self, slot: int) -> None:
        """Nobody needs what a slot holds."""
        self._snapshots.pop(slot, None)
        self._blank.append(slot)

    def take_moves(self) -> list[Move]:
        """What is to be done before anyone reads or changes a slot, in order."""
        moves, self._moves = self._moves, []
        return moves

    def forget_snapshots(self) -> None:
        """Keep none any longer."""
        for slot in tuple(self._snapshots):
            self._on_evict(slot)
            self.release(slot)
