"""Every kind of KV node that must pass the contract. A further one is one more entry in ``FACTORIES``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, WorkerId
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.kvnode.base import NodeClient
from pdd.sim.memory.lane import LanePatience
from pdd.sim.memory.line import MemoryLine
from pdd.sim.memory.network import MemoryNetwork
from pdd.sim.memory.node import MemoryNode
from tests.support.bad_line import BadLine, bad_line
from tests.support.kv_nodes import FAST_LINE, Cluster, kv_format, payload_of, running_cluster

CAPACITY = 32
BLOCK_BYTES = kv_format().block_bytes
A, B = NodeId("a"), NodeId("b")
FAST = BytesPerSecond(1e9)
TCP_LINE = replace(FAST_LINE, window_bytes=Bytes(4 * BLOCK_BYTES))
"""What the kernel has taken can't be called back: a small window leaves a slow line's queue to the node."""


class NodesUnderTest(Protocol):
    """Two nodes of ``CAPACITY`` blocks, ``a`` and ``b``, and the line from the one to the other."""

    def client(self, node: NodeId) -> NodeClient: ...

    async def write(self, node: NodeId, blocks: Sequence[BlockHash]) -> int:
        """As an engine does; how many were new."""
        ...

    async def read(self, node: NodeId, blocks: Sequence[BlockHash]) -> int:
        """How many leading ones are held, with the right bytes."""
        ...

    def set_rate(self, blocks_per_s: float | None) -> None:
        """Of the line; None for as fast as it goes."""
        ...

    async def stop_b(self) -> None: ...

    async def restart_b(self) -> None: ...


class TcpNodes:
    def __init__(self, cluster: Cluster, line: BadLine) -> None:
        self._cluster = cluster
        self._line = line

    def client(self, node: NodeId) -> NodeClient:
        return self._cluster[node].client

    async def write(self, node: NodeId, blocks: Sequence[BlockHash]) -> int:
        return await self._cluster[node].write(blocks)

    async def read(self, node: NodeId, blocks: Sequence[BlockHash]) -> int:
        return await self._cluster[node].read(blocks)

    def set_rate(self, blocks_per_s: float | None) -> None:
        self._line.bytes_per_second = None if blocks_per_s is None else blocks_per_s * BLOCK_BYTES

    async def stop_b(self) -> None:
        await self._cluster[B].stop()

    async def restart_b(self) -> None:
        await self._cluster[B].restart()


class MemoryNodes:
    def __init__(self, nodes: dict[NodeId, MemoryNode], line: MemoryLine) -> None:
        self._nodes = nodes
        self._line = line

    def client(self, node: NodeId) -> NodeClient:
        return self._nodes[node]

    async def write(self, node: NodeId, blocks: Sequence[BlockHash]) -> int:
        store = self._nodes[node].open_store(WorkerId("engine"))
        slots = store.begin_write(blocks)
        for slot in slots:
            store.view(slot.slot)[:] = payload_of(slot.hash, BLOCK_BYTES)
        store.commit(slots)
        store.close()
        return len(slots)

    async def read(self, node: NodeId, blocks: Sequence[BlockHash]) -> int:
        store = self._nodes[node].open_store(WorkerId("engine"))
        lease = store.lease(blocks)
        for block, slot in zip(blocks, lease.slots, strict=False):
            assert bytes(store.view(slot)) == payload_of(block, BLOCK_BYTES)
        store.close()
        return len(lease.slots)

    def set_rate(self, blocks_per_s: float | None) -> None:
        self._line.rate = FAST if blocks_per_s is None else BytesPerSecond(blocks_per_s * BLOCK_BYTES)

    async def stop_b(self) -> None:
        self._nodes[B].kill()

    async def restart_b(self) -> None:
        self._nodes[B].restart()


@asynccontextmanager
async def tcp_nodes(folder: Path) -> AsyncGenerator[NodesUnderTest]:
    async with (
        bad_line() as line,
        running_cluster(folder, A, B, capacity=CAPACITY, routes={(A, B): line.address}, line=TCP_LINE) as cluster,
    ):
        line.there = cluster[B].address
        yield TcpNodes(cluster, line)


@asynccontextmanager
async def memory_nodes(folder: Path) -> AsyncGenerator[NodesUnderTest]:
    patience = LanePatience(
        peer=Seconds(1.0), stall=Seconds(0.5), eviction_grace=Seconds(0.3), check_interval=Seconds(0.05)
    )
    network = MemoryNetwork(kv_format(), patience=patience)
    nodes = {name: network.add(name, capacity=CAPACITY, control_delay=Seconds(0.001)) for name in (A, B)}
    line = MemoryLine(rate=FAST, delay=Seconds(0.001))
    network.join(A, B, line)
    yield MemoryNodes(nodes, line)
    for node in nodes.values():
        node.life.index.check_integrity()


NodeFactory = Callable[[Path], AbstractAsyncContextManager[NodesUnderTest]]

FACTORIES: dict[str, NodeFactory] = {"tcp": tcp_nodes, "memory": memory_nodes}
