"""An engine's door to its in-memory node: synchronous, like ``kvnode.local.LocalNode``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pdd.core.blocks import BlockHash
from pdd.core.errors import NodeFailed
from pdd.core.ids import NodeId
from pdd.index.blocks import Owner, WriteSlot
from pdd.kvnode.store import NodeStore
from pdd.sim.memory.life import NodeLife


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLease:
    """Blocks that an engine reads: ``slots`` in order."""

    hashes: tuple[BlockHash, ...]
    slots: tuple[int, ...]


class MemoryStore:
    """One engine's. A node that hangs does not answer, and real engines then hang up: so does this, at once."""

    def __init__(self, node: NodeId, life: NodeLife, owner: Owner) -> None:
        self._node = node
        self._life = life
        self._owner = owner
        self._is_closed = False

    def is_alive(self) -> bool:
        return self._life.alive and not self._is_closed

    def lease(self, hashes: Sequence[BlockHash]) -> MemoryLease:
        """Leases the longest held prefix."""
        slots = self._ask().lease(self._owner, hashes)
        return MemoryLease(hashes=tuple(hashes[: len(slots)]), slots=slots)

    def release(self, lease: MemoryLease) -> None:
        self._ask().release(self._owner, lease.hashes)

    def begin_write(self, hashes: Sequence[BlockHash]) -> tuple[WriteSlot, ...]:
        """Slots for those neither held nor being written; fewer when there is no room."""
        return self._ask().begin_write(self._owner, hashes)

    def commit(self, slots: Sequence[WriteSlot]) -> None:
        self._ask().commit(self._owner, slots)

    def abort(self, slots: Sequence[WriteSlot]) -> None:
        self._ask().abort(self._owner, slots)

    def view(self, slot: int) -> memoryview:
        """The slot's content, as far as this world keeps any."""
        return self._life.view(slot)

    def close(self) -> None:
        """Releases everything that this engine holds here, as soon as the node attends to it. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            end = partial(self._life.store.release_owner, self._owner)
            self._life.attention.give_to(partial(self._life.do_if_alive, end))

    def _ask(self) -> NodeStore:
        if not self.is_alive():
            raise NodeFailed(f"node {self._node} is gone")
        if self._life.attention.is_hung:
            self.close()
            raise NodeFailed(f"node {self._node} does not answer")
        return self._life.store
