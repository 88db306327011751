"""Joins in-memory nodes: which block goes over which line next, and what is lost when a node dies or a line is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId
from pdd.core.kv_format import KvFormat
from pdd.core.units import BytesPerSecond, Seconds
from pdd.index.blocks import WriteSlot
from pdd.kvnode.memory import MemoryNode, NodeLife
from pdd.kvnode.memory_line import Flow, MemoryLine, StandingOrder

_LOCAL_RATE = BytesPerSecond(1.25e9)


class MemoryNetwork:
    """All nodes and the lines between them. Nodes that no line joins are joined by ``local``."""

    def __init__(
        self,
        kv_format: KvFormat,
        *,
        local_rate: BytesPerSecond = _LOCAL_RATE,
        local_delay: Seconds = Seconds(0.0001),
        peer_patience: Seconds = Seconds(10.0),
        eviction_grace: Seconds = Seconds(3.0),
    ) -> None:
        self._kv_format = kv_format
        self._local_rate = local_rate
        self._local_delay = local_delay
        self._peer_patience = peer_patience
        self._eviction_grace = eviction_grace
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

    def blocks_evicted(self, node: MemoryNode, blocks: Sequence[BlockHash]) -> None:
        """Orders at ``node`` that still owe one of them fail, unless it is soon written again."""
        for flow in node.flows.values():
            for standing in flow.orders.values():
                lost = [block for block in blocks if block in standing.remaining]
                if lost:
                    call = partial(self._fail_evicted, node, flow, standing, lost)
                    asyncio.get_running_loop().call_later(self._eviction_grace, call)

    def _fail_evicted(self, node: MemoryNode, flow: Flow, standing: StandingOrder, lost: Sequence[BlockHash]) -> None:
        index = node.life.index
        is_given_up = standing.lacking is not None and any(
            block in standing.remaining and not index.holds(block) and not index.is_writing(block) for block in lost
        )
        if is_given_up and flow.orders.get(standing.order.order) is standing:
            del flow.orders[standing.order.order]
            standing.is_lost = True
            standing.fail("a block of this order was evicted at the source before it was sent")

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
        allocation = target.life.index.begin_arrival(flow.owner, block)
        self.blocks_evicted(target, allocation.evicted)
        return allocation.writes[0] if allocation.writes else None

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
