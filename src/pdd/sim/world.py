"""A whole deployment in one process, on whatever loop runs: a topology's nodes, lines and engines under the real
driver.

Nothing of the router is modelled: driver, policies and index are those that serve live traffic. Engines come from the
caller (scripted ones for exact tokens, modelled ones for time); nodes and lines live in memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import permutations

from pdd.core.clock import Clock
from pdd.core.ids import NodeId, WorkerId
from pdd.core.kv_format import KvFormat
from pdd.core.request import Role
from pdd.core.topology import EngineTable, LinkTable, NodeTable, Topology
from pdd.core.units import Seconds, bytes_per_second
from pdd.engine.base import EngineClient
from pdd.kvnode.base import NodeClient
from pdd.router.clock import LoopClock
from pdd.router.driver.bounds.settings import DriverSettings, declared_rates, driver_settings
from pdd.router.driver.service import CommandHook, Driver
from pdd.router.driver.workers.worker import Worker
from pdd.sim.memory.line import Line, MemoryLine
from pdd.sim.memory.network import LOCAL_DELAY, MemoryNetwork
from pdd.sim.memory.node import MemoryNode
from pdd.telemetry.events import EventSink

MakeEngine = Callable[[EngineTable, MemoryNode], EngineClient]
"""Builds an engine on its local node."""

MakeClient = Callable[[MemoryNode], NodeClient]
"""What the router is given for a node: the node itself, or something between the two."""


MakeLine = Callable[[LinkTable], Line]
"""One direction of a link. Called twice for each."""

MakeLocalLine = Callable[[NodeTable, NodeTable], Line]
"""From one node to another that no link joins it to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What runs, and what may be broken. ``lines`` are directed: (from cluster, to cluster)."""

    topology: Topology
    kv_format: KvFormat
    network: MemoryNetwork
    nodes: Mapping[NodeId, MemoryNode]
    lines: Mapping[tuple[str, str], Line]
    engines: Mapping[WorkerId, EngineClient]
    driver: Driver

    def engines_of(self, role: Role) -> tuple[EngineClient, ...]:
        return tuple(self.engines[table.name] for table in self.topology.engines_of(role))


def make_memory_line(link: LinkTable) -> MemoryLine:
    """A line that serves its senders in turn, block by block."""
    return MemoryLine(rate=bytes_per_second(link.rate_bits_per_s), delay=link.delay_s)


def build_world(
    topology: Topology,
    kv_format: KvFormat,
    make_engine: MakeEngine,
    *,
    make_client: MakeClient = lambda node: node,
    make_line: MakeLine = make_memory_line,
    make_local_line: MakeLocalLine | None = None,
    payload_bytes: int | None = None,
    clock: Clock | None = None,
    settings: DriverSettings | None = None,
    on_command: CommandHook | None = None,
    sink: EventSink | None = None,
) -> World:
    """Builds a world that does not run yet. ``settings`` default to what the topology says.

    ``payload_bytes``: how much of a block nodes really keep and carry; None: all of it.
    """
    network = MemoryNetwork(kv_format, payload_bytes=payload_bytes)
    nodes = {table.name: _add_node(network, topology, table, kv_format) for table in topology.nodes}
    lines = dict(_make_lines(topology, make_line))
    _join(topology, network, lines, make_local_line)
    engines = {table.name: make_engine(table, nodes[table.node]) for table in topology.engines}
    clients = {name: make_client(node) for name, node in nodes.items()}
    driver = Driver(
        [_worker(table, engines, clients) for table in topology.engines],
        kv_format=kv_format,
        clock=clock or LoopClock(),
        rates=declared_rates(topology),
        settings=settings or driver_settings(topology.router),
        on_command=on_command,
        sink=sink,
    )
    return World(
        topology=topology,
        kv_format=kv_format,
        network=network,
        nodes=nodes,
        lines=lines,
        engines=engines,
        driver=driver,
    )


@asynccontextmanager
async def running(world: World) -> AsyncGenerator[World]:
    """Runs a world's driver until the context ends."""
    async with world.driver.running():
        yield world


def _add_node(network: MemoryNetwork, topology: Topology, table: NodeTable, kv_format: KvFormat) -> MemoryNode:
    capacity = max(1, table.arena_bytes // kv_format.block_bytes)
    return network.add(table.name, capacity=capacity, control_delay=_control_delay(topology, table.cluster))


def _control_delay(topology: Topology, cluster: str) -> Seconds:
    """One way between the router and a node of ``cluster``."""
    if cluster == topology.router.cluster:
        return LOCAL_DELAY
    link = topology.link_between(cluster, topology.router.cluster)
    return LOCAL_DELAY if link is None else link.delay_s


def _make_lines(topology: Topology, make_line: MakeLine) -> Iterator[tuple[tuple[str, str], Line]]:
    for link in topology.links:
        for source, target in (link.clusters, link.clusters[::-1]):
            yield (source, target), make_line(link)


def _join(
    topology: Topology,
    network: MemoryNetwork,
    lines: Mapping[tuple[str, str], Line],
    make_local_line: MakeLocalLine | None,
) -> None:
    for source, target in permutations(topology.nodes, 2):
        line = lines.get((source.cluster, target.cluster))
        if line is not None:
            network.join(source.name, target.name, line)
        elif make_local_line is not None:
            network.join(source.name, target.name, make_local_line(source, target))


def _worker(table: EngineTable, engines: Mapping[WorkerId, EngineClient], nodes: Mapping[NodeId, NodeClient]) -> Worker:
    return Worker(
        engine=engines[table.name],
        node=nodes[table.node],
        role=table.role,
        cluster=table.cluster,
        max_batch=table.max_batch,
    )
