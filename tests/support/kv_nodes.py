"""Real KV nodes for tests, on loopback in this process's loop, and what engines and routers do with them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pdd.core.blocks import BlockHash, block_hashes
from pdd.core.ids import NodeId, OrderId, Salt, WatchId, WorkerId
from pdd.core.kv_format import DType, KvFormat, uniform_attention_format
from pdd.core.replication import NodeStats, Readiness, ReplicationOrder, ReplicationProgress, Watch
from pdd.core.topology import Address
from pdd.core.units import Bytes, Seconds
from pdd.kvnode.client import ClientSettings, TcpNodeClient
from pdd.kvnode.local import LocalNode
from pdd.kvnode.sender import LineSettings
from pdd.kvnode.server import serve_node
from pdd.transport.tcp import listen_tcp, listen_unix

LOOPBACK = "127.0.0.1"
BLOCK_TOKENS = 4
FAST_LINE = LineSettings(
    peer_patience=Seconds(1.0),
    connect_timeout=Seconds(0.5),
    retry_delay=Seconds(0.02),
    stall_timeout=Seconds(0.5),
    check_interval=Seconds(0.05),
    eviction_grace=Seconds(0.3),
)
FAST_CLIENT = ClientSettings(retry_delay=Seconds(0.02))


def kv_format(*, model: str = "test-model", num_layers: int = 2, head_dim: int = 64) -> KvFormat:
    """8 KiB per block by default."""
    return uniform_attention_format(
        model=model,
        num_layers=num_layers,
        num_kv_heads=2,
        head_dim=head_dim,
        dtype=DType.FLOAT32,
        block_tokens=BLOCK_TOKENS,
    )


def chain(num_blocks: int, *, salt: str = "", form: KvFormat | None = None) -> tuple[BlockHash, ...]:
    """The hashes of a sequence of ``num_blocks`` blocks; chains of one salt share their prefix."""
    return block_hashes(form or kv_format(), Salt(salt), range(num_blocks * BLOCK_TOKENS))


def payload_of(block: BlockHash, num_bytes: int) -> bytes:
    """Every block's bytes follow from its name, so that a reader can tell right from wrong."""
    return (block * (num_bytes // len(block) + 1))[:num_bytes]


def write_blocks(node: LocalNode, blocks: Sequence[BlockHash], form: KvFormat) -> int:
    """What an engine does when blocks fill; returns how many were new."""
    writes = node.begin_write(blocks)
    for write in writes:
        node.view(write.slot)[:] = payload_of(write.hash, form.block_bytes)
    node.commit(writes)
    return len(writes)


def read_blocks(node: LocalNode, blocks: Sequence[BlockHash], form: KvFormat) -> int:
    """Leases, checks the bytes, releases; returns how many blocks were held."""
    lease = node.lease(blocks)
    for block, slot in zip(blocks, lease.slots, strict=False):
        assert bytes(node.view(slot)) == payload_of(block, form.block_bytes), "a held block has wrong bytes"
    node.release(lease)
    return len(lease.slots)


@dataclass(slots=True)
class RunningNode:
    """One node of a cluster under test."""

    name: NodeId
    socket_path: Path
    address: Address
    form: KvFormat
    client: TcpNodeClient
    task: asyncio.Task[None] | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    start: Callable[[], asyncio.Task[None]] | None = None

    def engine(self, name: str = "engine") -> LocalNode:
        """Call it in a thread: it is synchronous and the node runs in this loop."""
        return LocalNode.connect(self.socket_path, self.form, owner=WorkerId(name), timeout=Seconds(5.0))

    async def write(self, blocks: Sequence[BlockHash]) -> int:
        def work() -> int:
            with contextlib.closing(self.engine()) as engine:
                return write_blocks(engine, blocks, self.form)

        return await asyncio.to_thread(work)

    async def read(self, blocks: Sequence[BlockHash]) -> int:
        def work() -> int:
            with contextlib.closing(self.engine()) as engine:
                return read_blocks(engine, blocks, self.form)

        return await asyncio.to_thread(work)

    async def stop(self) -> None:
        """As a crash would: every connection breaks at once."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])

    async def restart(self) -> None:
        """The same name, address and socket; another instance with an empty arena."""
        assert self.start is not None
        self.ready.clear()
        self.task = self.start()
        await self.ready.wait()


@dataclass(slots=True)
class Cluster:
    """Nodes that may all send to each other, each with a router's client."""

    nodes: dict[str, RunningNode]

    def __getitem__(self, name: str) -> RunningNode:
        return self.nodes[name]


@contextlib.asynccontextmanager
async def running_cluster(
    folder: Path,
    *names: str,
    capacity: int = 32,
    form: KvFormat | None = None,
    forms: Mapping[str, KvFormat] | None = None,
    routes: Mapping[tuple[str, str], Address] | None = None,
    line: LineSettings = FAST_LINE,
) -> AsyncIterator[Cluster]:
    """Starts the nodes. ``routes`` replaces the address under which one node (first) reaches another (second)."""
    default = form or kv_format()
    listeners = {name: listen_tcp(Address(host=LOOPBACK, port=0)) for name in names}
    addresses = {NodeId(name): address_of(listener) for name, listener in listeners.items()}
    async with asyncio.TaskGroup() as tasks, contextlib.AsyncExitStack() as stack:
        nodes = {
            name: _start(
                tasks,
                folder,
                name,
                (forms or {}).get(name, default),
                listeners,
                addresses,
                routes or {},
                capacity,
                line,
            )
            for name in names
        }
        try:
            for node in nodes.values():
                await node.ready.wait()
                await stack.enter_async_context(node.client)
            yield Cluster(nodes=nodes)
        finally:
            await stack.aclose()
            for node in nodes.values():
                await node.stop()
            for listener in listeners.values():
                listener.close()


def address_of(listener: socket.socket) -> Address:
    """Where a listener of port 0 ended up."""
    return Address(host=LOOPBACK, port=listener.getsockname()[1])


def _start(
    tasks: asyncio.TaskGroup,
    folder: Path,
    name: str,
    form: KvFormat,
    listeners: dict[str, socket.socket],
    addresses: dict[NodeId, Address],
    routes: Mapping[tuple[str, str], Address],
    capacity: int,
    line: LineSettings,
) -> RunningNode:
    address = addresses[NodeId(name)]
    client = TcpNodeClient(node=NodeId(name), address=address, kv_format=form, settings=FAST_CLIENT)
    node = RunningNode(
        name=NodeId(name), socket_path=folder / f"{name}.sock", address=address, form=form, client=client
    )
    peers = {peer: routes.get((name, peer), there) for peer, there in addresses.items() if peer != name}

    async def serve() -> None:
        with contextlib.closing(listen_unix(node.socket_path)) as local:
            try:
                await serve_node(
                    node=node.name,
                    kv_format=form,
                    arena_bytes=Bytes(capacity * form.block_bytes),
                    tcp=listeners[name],
                    local=local,
                    peers=peers,
                    on_ready=node.ready.set,
                    settings=line,
                )
            finally:
                node.socket_path.unlink(missing_ok=True)

    node.start = lambda: tasks.create_task(serve())
    node.task = node.start()
    return node


def order(name: str, target: str, hashes: Sequence[BlockHash]) -> ReplicationOrder:
    return ReplicationOrder(order=OrderId(name), target=NodeId(target), hashes=tuple(hashes))


def watch(name: str, hashes: Sequence[BlockHash], reserve_blocks: int | None = None) -> Watch:
    size = len(hashes) if reserve_blocks is None else reserve_blocks
    return Watch(watch=WatchId(name), hashes=tuple(hashes), reserve_blocks=size)


async def last_progress(progress: AsyncGenerator[ReplicationProgress]) -> ReplicationProgress:
    """Follows an order to its end."""
    reports = [report async for report in progress]
    assert [report.done for report in reports] == [False] * (len(reports) - 1) + [True]
    return reports[-1]


async def until_ready(readiness: AsyncGenerator[Readiness], num_ready: int) -> None:
    """Follows a watch, which must never go back, until ``num_ready`` blocks are ready."""
    before = 0
    async for report in readiness:
        assert report.num_ready >= before
        before = report.num_ready
        if report.num_ready >= num_ready:
            return
    raise AssertionError("the watch ended early")


async def until_idle(client: TcpNodeClient) -> NodeStats:
    """Waits until nothing is leased, reserved or under way; the caller's timeout bounds it."""
    while True:
        stats = await client.stats()
        if not (stats.leased_blocks or stats.reserved_blocks or stats.writing_blocks or stats.orders or stats.watches):
            return stats
        await asyncio.sleep(0.01)
