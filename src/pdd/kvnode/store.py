"""A node's state: index, open arrivals and orders, and who must hear of which change. Lives on one event loop.

The memory that the slots stand for is somebody else's. All methods are synchronous, so nothing happens between reading
the books and writing them. What follows from a change for *others* (parked blocks that can be asked for now, held-back
sends) is settled once per loop turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, NodeInstance
from pdd.core.kv_format import KvFormat
from pdd.index.blocks import BlockIndex, Owner, WriteSlot
from pdd.protocol.arrivals import Arrivals, SourceKey
from pdd.protocol.peer import FromTarget


class Outlet(Protocol):
    """A sender to one target, as far as the local index concerns it."""

    @property
    def num_orders(self) -> int: ...

    @property
    def holds_back(self) -> bool: ...

    def block_held(self, block: BlockHash) -> None: ...

    def block_gone(self, block: BlockHash) -> None: ...

    def block_refused(self, block: BlockHash) -> None: ...

    def retry_held_back(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class TrafficCounters:
    """Since this node started. Payload bytes by peer node."""

    sent_bytes: Counter[str] = field(default_factory=Counter[str])
    received_bytes: Counter[str] = field(default_factory=Counter[str])
    digest_failures: int = 0


class NodeStore:
    """The single owner of one node's mutable state."""

    def __init__(self, *, node: NodeId, instance: NodeInstance, kv_format: KvFormat, capacity: int) -> None:
        self.node = node
        self.instance = instance
        self.kv_format = kv_format
        self.index = BlockIndex(capacity)
        self.arrivals = Arrivals(self.index)
        self.counters = TrafficCounters()
        self.outlets: dict[NodeId, Outlet] = {}
        self._sources: dict[SourceKey, Callable[[FromTarget], None]] = {}
        self._watchers: dict[Owner, Callable[[int], None]] = {}
        self._is_settling = False

    # --- writing

    def begin_write(self, owner: Owner, hashes: Sequence[BlockHash]) -> tuple[WriteSlot, ...]:
        """A local engine's write. Orders that wait for a block that finds no room fail."""
        allocation = self.index.begin_write(owner, hashes)
        self._tell_evicted(allocation.evicted)
        for block in allocation.refused:
            for outlet in self.outlets.values():
                outlet.block_refused(block)
        return allocation.writes

    def begin_arrival(self, owner: Owner, block: BlockHash) -> WriteSlot | None:
        """A peer's write; None when the block is held or being written, or there is no room."""
        allocation = self.index.begin_arrival(owner, block)
        self._tell_evicted(allocation.evicted)
        return allocation.writes[0] if allocation.writes else None

    def _tell_evicted(self, evicted: Sequence[BlockHash]) -> None:
        for block in evicted:
            for outlet in self.outlets.values():
                outlet.block_gone(block)

    def commit(self, owner: Owner, writes: Sequence[WriteSlot]) -> None:
        """Makes filled blocks visible to everybody at once; stale writes are ignored."""
        for write in writes:
            waiting = self.index.waiting_for(write.hash)
            if self.index.commit(owner, write):
                self._tell_held(write.hash, waiting)
        self.settle_soon()

    def _tell_held(self, block: BlockHash, waiting: Sequence[Owner]) -> None:
        self.arrivals.block_held(block)
        for outlet in self.outlets.values():
            outlet.block_held(block)
        for owner in waiting:
            if owner in self._watchers:
                self._watchers[owner](self.index.num_ready(owner))

    def abort(self, owner: Owner, writes: Sequence[WriteSlot]) -> None:
        for write in writes:
            self.index.abort(owner, write)
        self.settle_soon()

    # --- leases

    def lease(self, owner: Owner, hashes: Sequence[BlockHash]) -> tuple[int, ...]:
        return self.index.lease(owner, hashes)

    def release(self, owner: Owner, hashes: Sequence[BlockHash]) -> None:
        self.index.release(owner, hashes)
        self.settle_soon()

    def release_owner(self, owner: Owner) -> None:
        """Ends all that an owner has; idempotent."""
        self.index.release_owner(owner)
        self.settle_soon()

    # --- pins

    def pin(self, owner: Owner, hashes: Sequence[BlockHash]) -> None:
        """See ``BlockIndex.pin``."""
        self.index.pin(owner, hashes)

    def unpin(self, owner: Owner) -> None:
        self.index.unpin(owner)

    # --- watches

    def start_watch(
        self, owner: Owner, hashes: Sequence[BlockHash], num_blocks: int, report: Callable[[int], None]
    ) -> None:
        """Reserves, and calls ``report`` with the number of ready blocks now and whenever a block was committed.

        Raises:
            CapacityExhausted, ContextTooLong: as ``BlockIndex.reserve``.
        """
        num_ready = self.index.reserve(owner, hashes, num_blocks)
        self._watchers[owner] = report
        report(num_ready)
        self.settle_soon()

    def end_watch(self, owner: Owner) -> None:
        self._watchers.pop(owner, None)
        self.release_owner(owner)

    @property
    def num_watches(self) -> int:
        return len(self._watchers)

    # --- sources of arrivals

    def add_source(self, source: SourceKey, deliver: Callable[[FromTarget], None]) -> None:
        self._sources[source] = deliver

    def remove_source(self, source: SourceKey) -> None:
        """Its connection has ended: its unfinished block and its claims go."""
        del self._sources[source]
        self.release_owner(Owner(source))
        self.arrivals.lost(source)
        self.deliver()

    def deliver(self) -> None:
        """Hands out what the arrivals have to say."""
        for source, message in self.arrivals.take_messages():
            self._sources[source](message)

    # --- consequences

    def settle_soon(self) -> None:
        """Room or a slot may have become free. Once per loop turn, and only if somebody waits for that."""
        if not self._is_settling and self._somebody_waits():
            self._is_settling = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _somebody_waits(self) -> bool:
        if self.arrivals.num_parked:
            return True
        for outlet in self.outlets.values():  # noqa: SIM110 - for each block; a generator would take as long again
            if outlet.holds_back:
                return True
        return False

    def _settle(self) -> None:
        self._is_settling = False
        self.arrivals.reconsider()
        self.deliver()
        for outlet in self.outlets.values():
            outlet.retry_held_back()
