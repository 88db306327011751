"""The records that the index keeps: slots, permissions to fill them, reservations."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pdd.core.blocks import BlockHash
from pdd.index.eviction import Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSlot:
    """Permission to fill ``slot`` with the block ``hash``.

    ``generation`` tells this filling from all others of the slot.
    """

    hash: BlockHash
    slot: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What a writer got, what had to go for it, and which hashes found no room."""

    writes: tuple[WriteSlot, ...]
    evicted: tuple[BlockHash, ...]
    refused: tuple[BlockHash, ...]


class SlotState(Enum):
    """What a slot holds: nothing, a block that someone fills, or a complete and visible one."""

    FREE = "free"
    WRITING = "writing"
    HELD = "held"


@dataclass(slots=True)
class Slot:
    """One slot's books."""

    state: SlotState = SlotState.FREE
    hash: BlockHash | None = None
    generation: int = 0
    writer: Owner | None = None
    num_leases: int = 0


@dataclass(slots=True, kw_only=True)
class Reservation:
    """What one owner was promised. ``missing`` are those of ``hashes`` that are not held."""

    hashes: tuple[BlockHash, ...]
    num_unnamed: int
    missing: set[BlockHash] = field(default_factory=set[BlockHash])
    num_ready: int = 0

    def count_ready(self) -> None:
        """Some of the missing may have come."""
        while self.num_ready < len(self.hashes) and self.hashes[self.num_ready] not in self.missing:
            self.num_ready += 1
