"""Joins in-memory nodes: which lines there are, and which connections end when a node or a line fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

from pdd.core.errors import NodeFailed
from pdd.core.ids import NodeId
from pdd.core.kv_format import KvFormat
from pdd.core.topology import LOCAL_RATE
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.sim.memory.lane import LanePatience, MemoryLane
from pdd.sim.memory.life import NodeLife
from pdd.sim.memory.line import Line, MemoryLine
from pdd.sim.memory.node import MemoryNode

LOCAL_DELAY = Seconds(0.0001)
_WINDOW_BLOCKS = 4096
_PATIENCE = LanePatience()


class MemoryNetwork:
    """All nodes and the lines between them. Nodes that no line joins are joined by local ones.

    ``payload_bytes``: how much of a block is really kept and carried (None: all of it). Time and books go by the
    format.
    """

    def __init__(
        self,
        kv_format: KvFormat,
        *,
        payload_bytes: int | None = None,
        local_rate: BytesPerSecond = LOCAL_RATE,
        local_delay: Seconds = LOCAL_DELAY,
        patience: LanePatience = _PATIENCE,
    ) -> None:
        self._kv_format = kv_format
        self._payload_bytes = kv_format.block_bytes if payload_bytes is None else payload_bytes
        self._local_rate = local_rate
        self._local_delay = local_delay
        self._patience = patience
        self._nodes: dict[NodeId, MemoryNode] = {}
        self._lines: dict[tuple[NodeId, NodeId], Line] = {}
        self._lanes: dict[tuple[NodeId, NodeId], tuple[NodeLife, MemoryLane]] = {}
        self._numbers = count(1)

    def add(self, node: NodeId, *, capacity: int, control_delay: Seconds = Seconds(0.0)) -> MemoryNode:
        """A new node with room for ``capacity`` blocks."""
        self._nodes[node] = MemoryNode(
            self,
            node,
            self._kv_format,
            capacity=capacity,
            payload_bytes=self._payload_bytes,
            control_delay=control_delay,
        )
        return self._nodes[node]

    def join(self, source: NodeId, target: NodeId, line: Line) -> None:
        """Sends from ``source`` to ``target`` over ``line``, which other pairs may share.

        Before any order is placed.
        """
        self._lines[source, target] = line

    def line(self, source: NodeId, target: NodeId) -> Line:
        if (source, target) not in self._lines:
            self._lines[source, target] = MemoryLine(rate=self._local_rate, delay=self._local_delay)
        return self._lines[source, target]

    # Faults of lines --------------------------------------------------------------------------------------------------

    def cut(self, line: Line) -> None:
        """Cuts a line: blocks on it are lost and sent again when it is back; orders wait for a while."""
        line.cut()
        for lane in self._lanes_over(line):
            lane.close()

    def restore(self, line: Line) -> None:
        """Repairs a line."""
        line.restore()
        self._retry(line)

    def stall(self, line: Line) -> None:
        """Nothing moves on a line; soon connections are given up that wait for something."""
        line.stall()
        asyncio.get_running_loop().call_later(self._patience.stall, self._lose_patience, line)

    def resume(self, line: Line) -> None:
        """It moves again."""
        line.resume()
        self._retry(line)

    def _lose_patience(self, line: Line) -> None:
        if line.is_stalled:
            for lane in self._lanes_over(line):
                lane.close_if_it_waits()

    def _lanes_over(self, line: Line) -> Iterator[MemoryLane]:
        return (lane for _, lane in tuple(self._lanes.values()) if lane.line is line)

    def _retry(self, line: Line) -> None:
        for lane in self._lanes_over(line):
            lane.retry()

    # What nodes tell --------------------------------------------------------------------------------------------------

    def lane(self, source: MemoryNode, target: NodeId) -> MemoryLane:
        """The way from a node's present life to another node. Raises NodeFailed: there is no such node."""
        if target not in self._nodes or target == source.node:
            raise NodeFailed(f"node {source.node!r} knows no peer {target!r}")
        life, lane = self._lanes.get((source.node, target), (None, None))
        if lane is None or life is not source.life:
            lane = MemoryLane(
                source.node,
                source.life,
                self._nodes[target],
                self.line(source.node, target),
                window_bytes=Bytes(_WINDOW_BLOCKS * self._kv_format.block_bytes),
                patience=self._patience,
                numbers=self._numbers,
            )
            self._lanes[source.node, target] = (source.life, lane)
        return lane

    def lanes_ended(self, node: MemoryNode) -> None:
        for lane in (*self._lanes_from(node), *self._lanes_to(node)):
            lane.close()

    def node_hangs(self, node: MemoryNode) -> None:
        """Sources find a connection stalled; targets take a silent source for gone."""

        def given_up_by_sources() -> None:
            for lane in self._lanes_to(node):
                lane.close_if_it_waits()

        def given_up_by_targets() -> None:
            for lane in self._lanes_from(node):
                lane.close()

        node.life.attention.after_hanging(self._patience.stall, given_up_by_sources)
        node.life.attention.after_hanging(self._patience.silence, given_up_by_targets)

    def node_attends(self, node: MemoryNode) -> None:
        for lane in (*self._lanes_from(node), *self._lanes_to(node)):
            lane.retry()

    def _lanes_from(self, node: MemoryNode) -> list[MemoryLane]:
        return [lane for (source, _), (_, lane) in self._lanes.items() if source == node.node]

    def _lanes_to(self, node: MemoryNode) -> list[MemoryLane]:
        return [lane for (_, target), (_, lane) in self._lanes.items() if target == node.node]
