"""Who waits for capacity at a full node: only the first asks, so that many who wait ask no more often than one.

While somebody waits, newcomers stand behind: a large reservation, which is met whole or not at all, would else be
passed by small ones for ever. The first asks again as soon as something was released at the node, and after a while
anyhow, since not all that occupies a node is the router's.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, auto
from typing import Generic, TypeVar

_Waiter = TypeVar("_Waiter", bound=Hashable)


class Turn(Enum):
    """Whether one that needs capacity may ask for it."""

    OPEN = auto()
    """Nobody waits: everybody asks at once."""
    CALLED = auto()
    """It is the first, and something was released since it asked last: it asks at once."""
    FIRST = auto()
    """It is the first, but nothing was released: it asks again after a while."""
    BEHIND = auto()
    """Others go first; it is called when its turn comes."""


class CapacityQueue(Generic[_Waiter]):
    """One node's. Methods that return a waiter say who is to be called now: it asks for its turn again."""

    def __init__(self) -> None:
        self._is_called: dict[_Waiter, bool] = {}

    def __len__(self) -> int:
        return len(self._is_called)

    def turn(self, waiter: _Waiter) -> Turn:
        """Takes the last position if others wait. Whoever is CALLED was told so."""
        if not self._is_called:
            return Turn.OPEN
        self.join(waiter)
        if self._first() != waiter:
            return Turn.BEHIND
        is_called, self._is_called[waiter] = self._is_called[waiter], False
        return Turn.CALLED if is_called else Turn.FIRST

    def join(self, waiter: _Waiter) -> None:
        """It was refused: it takes the last position, unless it has one already."""
        self._is_called.setdefault(waiter, False)

    def leave(self, waiter: _Waiter) -> _Waiter | None:
        """It has capacity, or needs none any more: if it was the first, the next one may ask at once. Idempotent."""
        was_first = self._first() == waiter
        self._is_called.pop(waiter, None)
        return self.release() if was_first else None

    def release(self) -> _Waiter | None:
        """Something at the node was released."""
        first = self._first()
        if first is not None:
            self._is_called[first] = True
        return first

    def _first(self) -> _Waiter | None:
        return next(iter(self._is_called), None)
