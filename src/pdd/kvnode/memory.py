"""KV nodes in one process: the same index, orders, watches and faults as real ones, without sockets, processes or tasks.

For tests and the simulator. A ``MemoryNetwork`` joins ``MemoryNode``s by lines with a rate, a delay and cuts. A node is a
``NodeClient`` for the router, and gives engines a ``MemoryStore``, the local door. Killed, it forgets everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pdd.core.blocks import BlockHash
from pdd.core.errors import BlocksLost, LocalProtocolError, NodeFailed
from pdd.core.ids import NodeId, NodeInstance, OrderId, PinId, WatchId, WorkerId
from pdd.core.kv_format import KvFormat
from pdd.core.request import SendClass
from pdd.core.units import Bytes, Seconds
from pdd.index.blocks import BlockIndex, Owner, WriteSlot
from pdd.kvnode.base import NodeStats, Pin, Readiness, ReplicationOrder, ReplicationProgress, Watch
from pdd.kvnode.memory_line import Flow, MemoryLine, StandingOrder


@dataclass(slots=True)
class _OpenWatch:
    owner: Owner
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLease:
    """Blocks that an engine reads: ``slots`` in order."""

    hashes: tuple[BlockHash, ...]
    slots: tuple[int, ...]


class NodeLife:
    """Everything that a node loses when it is killed."""

    def __init__(self, number: int, capacity: int) -> None:
        self.number = number
        self.alive = True
        self.index = BlockIndex(capacity)
        self.payloads: dict[int, bytearray] = {}
        self.watches: dict[WatchId, _OpenWatch] = {}
        self.received: dict[str, int] = {}
        self.num_stores = 0

    def payload(self, slot: int) -> bytes:
        """A copy of a slot's content."""
        return bytes(self.payloads[slot])

    def view(self, slot: int, num_bytes: int) -> memoryview:
        """A slot's content itself."""
        return memoryview(self.payloads.setdefault(slot, bytearray(num_bytes)))


class Network(Protocol):
    """What a node tells the world around it; ``kvnode.memory_network``."""

    def line(self, source: NodeId, target: NodeId) -> MemoryLine: ...
    def order_placed(self, source: MemoryNode, target: NodeId, standing: StandingOrder) -> None: ...
    def blocks_appeared(self, node: MemoryNode, blocks: Sequence[BlockHash]) -> None: ...
    def blocks_evicted(self, node: MemoryNode, blocks: Sequence[BlockHash]) -> None: ...
    def room_changed(self, node: MemoryNode) -> None: ...
    def node_died(self, node: MemoryNode, flows: Mapping[NodeId, Flow]) -> None: ...
    def node_came_back(self, node: MemoryNode) -> None: ...


class MemoryNode:
    """One node. Made by ``MemoryNetwork.add``. ``control_delay`` is one way between it and the router."""

    def __init__(
        self, network: Network, node: NodeId, kv_format: KvFormat, *, capacity: int, control_delay: Seconds
    ) -> None:
        self.control_delay = control_delay
        self._network = network
        self._node = node
        self._kv_format = kv_format
        self._capacity = capacity
        self._life = NodeLife(1, capacity)
        self._flows: dict[NodeId, Flow] = {}

    # The router's door ------------------------------------------------------------------------------------------------

    @property
    def node(self) -> NodeId:
        return self._node

    async def replicate(self, order: ReplicationOrder) -> AsyncGenerator[ReplicationProgress]:
        """See ``NodeClient.replicate``."""
        life = self._require_life()
        await asyncio.sleep(self.control_delay)
        self._require_same(life)
        flow = self._flow(order.target)
        standing = StandingOrder(order, dict.fromkeys(order.hashes), order.send_class)
        flow.orders[order.order] = standing
        self._network.order_placed(self, order.target, standing)
        last: ReplicationProgress | None = None
        while True:
            standing.changed.clear()
            if standing.failure is not None:
                raise BlocksLost(standing.failure) if standing.is_lost else NodeFailed(standing.failure)
            progress = flow.progress(standing)
            if progress != last:
                last = progress
                yield progress
            if progress.done:
                return
            await standing.changed.wait()

    async def cancel(self, order: OrderId) -> None:
        """See ``NodeClient.cancel``."""
        self._require_life()
        await asyncio.sleep(self.control_delay)
        for flow in self._flows.values():
            standing = flow.orders.pop(order, None)
            if standing is not None:
                standing.fail("the order was cancelled")

    async def reclassify(self, order: OrderId, send_class: SendClass) -> None:
        """See ``NodeClient.reclassify``."""
        life = self._require_life()
        await asyncio.sleep(self.control_delay)
        self._require_same(life)
        for flow in self._flows.values():
            if order in flow.orders:
                flow.orders[order].send_class = send_class
                flow.orders[order].changed.set()

    async def pin(self, pin: Pin) -> None:
        """See ``NodeClient.pin``."""
        life = self._require_life()
        await asyncio.sleep(self.control_delay)
        self._require_same(life)
        life.index.pin(Owner(f"pin {pin.pin}"), pin.hashes)

    async def unpin(self, pin: PinId) -> None:
        """See ``NodeClient.unpin``."""
        life = self._life
        await asyncio.sleep(self.control_delay)
        life.index.unpin(Owner(f"pin {pin}"))

    async def watch(self, watch: Watch) -> AsyncGenerator[Readiness]:
        """See ``NodeClient.watch``."""
        life = self._require_life()
        await asyncio.sleep(self.control_delay)
        self._require_same(life)
        if watch.watch in life.watches:
            raise LocalProtocolError(f"watch {watch.watch} is open already")
        opened = _OpenWatch(Owner(f"watch {watch.watch}"))
        life.index.reserve(opened.owner, watch.hashes, watch.reserve_blocks)
        life.watches[watch.watch] = opened
        self._network.room_changed(self)  # what it names may come now, where it had no room before
        try:
            last: int | None = None
            while True:
                opened.changed.clear()
                self._require_same(life)
                num_ready = life.index.num_ready(opened.owner)
                if num_ready != last:
                    last = num_ready
                    await asyncio.sleep(self.control_delay)
                    yield Readiness(watch=watch.watch, num_ready=num_ready)
                else:
                    await opened.changed.wait()
        finally:
            self._end_watch(life, watch.watch)

    async def stats(self) -> NodeStats:
        """See ``NodeClient.stats``."""
        life = self._require_life()
        await asyncio.sleep(2 * self.control_delay)
        self._require_same(life)
        index = life.index
        return NodeStats(
            node=self._node,
            instance=NodeInstance(f"{self._node}-{life.number}"),
            capacity_blocks=self._capacity,
            held_blocks=index.num_held,
            leased_blocks=index.num_leased,
            reserved_blocks=index.num_reserved,
            writing_blocks=index.num_writing,
            orders=sum(len(flow.orders) for flow in self._flows.values()),
            watches=len(life.watches),
            block_bytes=self._kv_format.block_bytes,
            sent_bytes={str(target): flow.sent_bytes for target, flow in self._flows.items()},
            received_bytes=dict(life.received),
            evictions=index.evictions,
            digest_failures=0,
            pinned_blocks=index.num_pinned,
        )

    # Faults -----------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Like kill -9: blocks, leases, reservations, orders and connections are gone."""
        life = self._life
        life.alive = False
        for opened in life.watches.values():
            opened.changed.set()
        flows, self._flows = self._flows, {}
        for flow in flows.values():
            for standing in flow.orders.values():
                standing.fail(f"node {self._node} is gone")
        self._network.node_died(self, flows)

    def restart(self) -> None:
        """Comes back empty, as another instance."""
        if not self._life.alive:
            self._life = NodeLife(self._life.number + 1, self._capacity)
            self._network.node_came_back(self)

    # The engines' door ------------------------------------------------------------------------------------------------

    def open_store(self, owner: WorkerId) -> MemoryStore:
        """Raises NodeFailed when the node is not up."""
        life = self._require_life()
        life.num_stores += 1
        return MemoryStore(self, life, Owner(f"engine {owner} {life.num_stores}"))

    # What the network and the stores need -----------------------------------------------------------------------------

    @property
    def life(self) -> NodeLife:
        """The present lifetime, or the last one."""
        return self._life

    @property
    def block_bytes(self) -> Bytes:
        return self._kv_format.block_bytes

    @property
    def flows(self) -> dict[NodeId, Flow]:
        """Orders of this node, by target."""
        return self._flows

    def blocks_changed(self, blocks: Sequence[BlockHash]) -> None:
        """Blocks have become visible here."""
        for opened in self._life.watches.values():
            opened.changed.set()
        self._network.blocks_appeared(self, blocks)

    def blocks_evicted(self, blocks: Sequence[BlockHash]) -> None:
        """Blocks had to go for others."""
        self._network.blocks_evicted(self, blocks)

    def _flow(self, target: NodeId) -> Flow:
        if target not in self._flows:
            line = self._network.line(self._node, target)
            self._flows[target] = Flow(self._node, line, self._kv_format.block_bytes, holds=self._life.index.holds)
        return self._flows[target]

    def _require_life(self) -> NodeLife:
        if not self._life.alive:
            raise NodeFailed(f"node {self._node} is not up")
        return self._life

    def _require_same(self, life: NodeLife) -> None:
        if not life.alive:
            raise NodeFailed(f"node {self._node} is gone")

    def _end_watch(self, life: NodeLife, watch: WatchId) -> None:
        opened = life.watches.pop(watch, None)
        if opened is not None:
            life.index.release_owner(opened.owner)
            self._network.room_changed(self)


class MemoryStore:
    """An engine's door to its node: synchronous, like ``kvnode.local.LocalNode``."""

    def __init__(self, node: MemoryNode, life: NodeLife, owner: Owner) -> None:
        self._node = node
        self._life = life
        self._owner = owner

    def is_alive(self) -> bool:
        return self._life.alive

    def lease(self, hashes: Sequence[BlockHash]) -> MemoryLease:
        """Leases the longest held prefix."""
        slots = self._index().lease(self._owner, hashes)
        return MemoryLease(hashes=tuple(hashes[: len(slots)]), slots=slots)

    def release(self, lease: MemoryLease) -> None:
        self._index().release(self._owner, lease.hashes)

    def begin_write(self, hashes: Sequence[BlockHash]) -> tuple[WriteSlot, ...]:
        """Slots for those neither held nor being written; fewer when there is no room."""
        allocation = self._index().begin_write(self._owner, hashes)
        self._node.blocks_evicted(allocation.evicted)
        return allocation.writes

    def commit(self, slots: Sequence[WriteSlot]) -> None:
        index = self._index()
        self._node.blocks_changed([slot.hash for slot in slots if index.commit(self._owner, slot)])

    def abort(self, slots: Sequence[WriteSlot]) -> None:
        index = self._index()
        for slot in slots:
            index.abort(self._owner, slot)

    def view(self, slot: int) -> memoryview:
        self._index()
        return self._life.view(slot, self._node.block_bytes)

    def close(self) -> None:
        """Releases everything that this engine holds here. Idempotent."""
        if self._life.alive:
            self._life.index.release_owner(self._owner)

    def _index(self) -> BlockIndex:
        if not self._life.alive:
            raise NodeFailed(f"node {self._node.node} is gone")
        return self._life.index
