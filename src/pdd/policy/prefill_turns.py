"""Whose prompt is computed while main decode has no room for everybody's.

A request that main decode's node has turned away may wait for long, or in vain. What prefill computes for it meanwhile
delays those that can go on at once.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import assert_never


class Standing(Enum):
    """What a request has before its first token."""

    ROOM = auto()
    """Main decode's node has room for it, or has not said otherwise."""
    RELAY_ONLY = auto()
    """It waits for that room, but relay decode has a place for it: it answers as soon as the room is there."""
    NOTHING = auto()
    """It waits for that room, and has no place at relay decode either."""


def may_compute(standing: Standing, *, num_with_room: int) -> bool:
    """Whether a request may compute its prompt at a worker where ``num_with_room`` others that have room do."""
    match standing:
        case Standing.ROOM:
            return True
        case Standing.RELAY_ONLY:
            return num_with_room == 0
        case Standing.NOTHING:
            return False
        case _:
            assert_never(standing)
