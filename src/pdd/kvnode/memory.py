"""KV nodes in one process: the same index, orders, watches and faults as real ones, without sockets, processes or tasks.

For tests and the simulator. A ``MemoryNetwork`` joins ``MemoryNode``s by lines with a rate, a delay and cuts. A node is a
``NodeClient`` for the router, and gives engines a ``MemoryStore``, the local door. Killed, it forgets everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pdd.core.blocks import BlockHash
from pdd.core.errors import LocalProtocolError, NodeFailed
from pdd.core.ids import NodeId, NodeInstance, OrderId, WatchId, WorkerId
from pdd.core.kv_format import KvFormat
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.index.blocks import BlockIndex, Owner, WriteSlot
from pdd.kvnode.base import NodeStats, Readiness, ReplicationOrder, ReplicationProgress, Watch
from pdd.kvnode.memory_line import Flow, MemoryLine, StandingOrder

_LOCAL_RATE = BytesPerSecond(1.25e9)


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


class MemoryNode:
    """One node. Made by ``MemoryNetwork.add``. ``control_delay`` is one way between it and the router."""

    def __init__(
        self, network: MemoryNetwork, node: NodeId, kv_format: KvFormat, *, capacity: int, control_delay: Seconds
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
        standing = StandingOrder(order, dict.fromkeys(order.hashes))
        flow.orders[order.order] = standing
        self._network.order_placed(self, order.target, standing)
        last: ReplicationProgress | None = None
        while True:
            standing.changed.clear()
            if standing.failure is not None:
                raise NodeFailed(standing.failure)
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

    def _flow(self, target: NodeId) -> Flow:
        if target not in self._flows:
            line = self._network.line(self._node, target)
            self._flows[target] = Flow(self._node, line, self._kv_format.block_bytes)
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

    def lease(self, hashes: Sequence[BlockHash]) -> MemoryLease:
        """Leases the longest held prefix."""
        slots = self._index().lease(self._owner, hashes)
        return MemoryLease(hashes=tuple(hashes[: len(slots)]), slots=slots)

    def release(self, lease: MemoryLease) -> None:
        self._index().release(self._owner, lease.hashes)

    def begin_write(self, hashes: Sequence[BlockHash]) -> tuple[WriteSlot, ...]:
        """Slots for those neither held nor being written; fewer when there is no room."""
        return self._index().begin_write(self._owner, hashes).writes

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


class MemoryNetwork:
    """All nodes and the lines between them. Nodes that no line joins are joined by ``local``."""

    def __init__(
        self,
        kv_format: KvFormat,
        *,
        local_rate: BytesPerSecond = _LOCAL_RATE,
        local_delay: Seconds = Seconds(0.0001),
        peer_patience: Seconds = Seconds(10.0),
    ) -> None:
        self._kv_format = kv_format
        self._local_rate = local_rate
        self._local_delay = local_delay
        self._peer_patience = peer_patience
        self._nodes: dict[NodeId, MemoryNode] = {}
        self._lines: dict[tuple[NodeId, NodeId], MemoryLine] = {}

    def add(self, node: NodeId, *, capacity: int, control_delay: Seconds = Seconds(0.0)) -> MemoryNode:
        """A new node with room for ``capacity`` blocks."""
        self._nodes[node] = MemoryNode(self, node, self._kv_format, capacity=capacity, control_delay=control_delay)
        return self._nodes[node]

    def join(self, source: NodeId, target: NodeId, line: MemoryLine) -> None:
        """Sends from ``source`` to ``target`` over ``line``, which other pairs may share."""
        self._lines[source, target] = line

    def line(self, source: NodeId, target: NodeId) -> MemoryLine:
        if (source, target) not in self._lines:
            self._lines[source, target] = MemoryLine(rate=self._local_rate, delay=self._local_delay)
        return self._lines[source, target]

    def cut(self, line: MemoryLine) -> None:
        """Cuts a line: blocks on it are lost and sent again when it is back; orders wait for ``peer_patience``."""
        line.cut()
        for source, target, flow in self._flows():
            if flow.line is line:
                self._drop_in_flight(target, flow)
                self._fail_later(flow, lambda: line.is_cut, f"the line from {source.node} to {target.node} is cut")

    def restore(self, line: MemoryLine) -> None:
        """Repairs a line."""
        line.restore()
        for source, target, flow in self._flows():
            if flow.line is line:
                self._offer_all(source, target, flow)

    # What nodes report ------------------------------------------------------------------------------------------------

    def order_placed(self, source: MemoryNode, target: NodeId, standing: StandingOrder) -> None:
        """A new order: the target is asked what it lacks."""
        if target not in self._nodes:
            standing.fail(f"there is no node {target}")
            return
        self._offer(source, self._nodes[target], source.flows[target], standing)

    def blocks_appeared(self, node: MemoryNode, blocks: Sequence[BlockHash]) -> None:
        """Blocks are visible at ``node``: it can send them on, and whoever owes them to it need not."""
        for target, flow in tuple(node.flows.items()):
            self._pump(node, self._nodes[target], flow)
        for _, flow in self._flows_to(node):
            for block in blocks:
                flow.line.after_delay(partial(flow.acknowledge, block))

    def room_changed(self, node: MemoryNode) -> None:
        """What found no room at ``node`` may find it now."""
        for source, flow in self._flows_to(node):
            self._pump(source, node, flow)

    def node_died(self, node: MemoryNode, flows: Mapping[NodeId, Flow]) -> None:
        """``flows`` are those that it had: what they carried is lost, what others carry to it too."""
        for target, flow in flows.items():
            self._drop_in_flight(self._nodes[target], flow)
            self.room_changed(self._nodes[target])
        life = node.life
        for _, flow in self._flows_to(node):
            self._drop_in_flight(node, flow)
            self._fail_later(flow, lambda: node.life is life, f"node {node.node} is gone")

    def node_came_back(self, node: MemoryNode) -> None:
        """It is empty: every order to it begins anew."""
        for source, flow in self._flows_to(node):
            self._offer_all(source, node, flow)

    # Offers -----------------------------------------------------------------------------------------------------------

    def _offer_all(self, source: MemoryNode, target: MemoryNode, flow: Flow) -> None:
        for standing in tuple(flow.orders.values()):
            standing.lacking = None
            self._offer(source, target, flow, standing)

    def _offer(self, source: MemoryNode, target: MemoryNode, flow: Flow, standing: StandingOrder) -> None:
        """Asks "which of these do you lack?"; the answer takes a round trip. Nobody there: asked again when it is back."""
        life = target.life
        if flow.line.is_cut:
            self._fail_later(flow, lambda: flow.line.is_cut, f"the line from {source.node} to {target.node} is cut")
        elif not life.alive:
            self._fail_later(flow, lambda: target.life is life, f"node {target.node} is gone")
        else:
            flow.line.after_delay(partial(self._ask, source, target, flow, standing, life))

    def _ask(self, source: MemoryNode, target: MemoryNode, flow: Flow, standing: StandingOrder, life: NodeLife) -> None:
        if not life.alive or flow.line.is_cut:
            return
        held = [block for block in standing.order.hashes if life.index.holds(block)]
        life.index.touch(held)
        flow.line.after_delay(partial(self._answer, source, target, flow, standing, held))

    def _answer(
        self, source: MemoryNode, target: MemoryNode, flow: Flow, standing: StandingOrder, held: Sequence[BlockHash]
    ) -> None:
        if flow.orders.get(standing.order.order) is not standing:
            return
        # What arrived since the target was asked was acknowledged to nobody.
        late = [block for block in standing.order.hashes if target.life.alive and target.life.index.holds(block)]
        standing.answer((*held, *late))
        if standing.done:
            del flow.orders[standing.order.order]
        self._pump(source, target, flow)

    # Blocks -----------------------------------------------------------------------------------------------------------

    def _pump(self, source: MemoryNode, target: MemoryNode, flow: Flow) -> None:
        """Puts the next block on the line, unless one is still on its way onto it."""
        if flow.sending or flow.line.is_cut or not source.life.alive or not target.life.alive:
            return
        for standing in flow.in_turn():
            for block in standing.remaining:
                write = self._begin(source, target, flow, block)
                if write is not None:
                    flow.begin(standing, write)
                    self._send(source, target, flow, write)
                    return

    def _begin(self, source: MemoryNode, target: MemoryNode, flow: Flow, block: BlockHash) -> WriteSlot | None:
        """A slot at the target, if the source holds the block, and the target lacks it and has room."""
        if not source.life.index.holds(block):
            return None
        writes = target.life.index.begin_arrival(flow.owner, block).writes
        return writes[0] if writes else None

    def _send(self, source: MemoryNode, target: MemoryNode, flow: Flow, write: WriteSlot) -> None:
        payload = source.life.payload(source.life.index.slot_of(write.hash))
        block_bytes = self._kv_format.block_bytes

        def sent() -> None:
            if flow.in_flight.get(write.hash) is write:
                flow.sending = False
                self._pump(source, target, flow)

        def arrived() -> None:
            if flow.in_flight.get(write.hash) is write:
                del flow.in_flight[write.hash]
                self._land(source, target, flow, write, payload)

        flow.line.send(block_bytes, sent, arrived)

    def _land(self, source: MemoryNode, target: MemoryNode, flow: Flow, write: WriteSlot, payload: bytes) -> None:
        life = target.life
        life.view(write.slot, len(payload))[:] = payload
        life.received[source.node] = life.received.get(source.node, 0) + len(payload)
        if life.index.commit(flow.owner, write):
            target.blocks_changed([write.hash])

    def _drop_in_flight(self, target: MemoryNode, flow: Flow) -> None:
        """What was on the line is lost: the target takes its slots back."""
        flow.sending = False
        writes = tuple(flow.in_flight.values())
        flow.in_flight.clear()
        if target.life.alive:
            for write in writes:
                target.life.index.abort(flow.owner, write)

    def _fail_later(self, flow: Flow, still: Callable[[], bool], why: str) -> None:
        """Orders wait for a peer that is away, but not for ever."""

        def fail() -> None:
            if still():
                for standing in flow.orders.values():
                    standing.fail(why)
                flow.orders.clear()

        asyncio.get_running_loop().call_later(self._peer_patience, fail)

    def _flows(self) -> list[tuple[MemoryNode, MemoryNode, Flow]]:
        return [
            (source, self._nodes[target], flow)
            for source in self._nodes.values()
            for target, flow in source.flows.items()
        ]

    def _flows_to(self, node: MemoryNode) -> list[tuple[MemoryNode, Flow]]:
        return [(source, flow) for source, target, flow in self._flows() if target is node]
