"""The router, composed: clients of every engine and node, the driver over them, the front door over that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from pdd.belief.worker_state import WorkerStatus
from pdd.cli.roles.context import RoleContext
from pdd.cli.topology.formats import kv_format_of
from pdd.core.clock import Clock
from pdd.core.ids import NodeId
from pdd.core.kv_format import KvFormat
from pdd.core.request import Role
from pdd.core.topology import RouterTable, Topology
from pdd.engine.catalog import model_of
from pdd.engine.http.client import HttpEngineClient, engine_session
from pdd.kvnode.base import NodeClient
from pdd.kvnode.client import TcpNodeClient
from pdd.router.api.answers import AnswerMemory
from pdd.router.api.app import Health, Limits, WorkerCount, WorkerHealth, create_app, serve
from pdd.router.api.callers import Callers
from pdd.router.api.tenants import Tenants
from pdd.router.clock import LoopClock
from pdd.router.driver.bounds.settings import declared_rates, driver_settings
from pdd.router.driver.figures import read_router
from pdd.router.driver.service import Driver
from pdd.router.driver.workers.agreement import Agreement
from pdd.router.driver.workers.worker import Worker
from pdd.telemetry.events import EventSink
from pdd.telemetry.figures import RouterReading
from pdd.telemetry.metrics import RouterMetrics
from pdd.telemetry.trace import LiveTrace


async def main(context: RoleContext) -> None:
    """Runs the topology's router."""
    topology = context.topology
    model = model_of(topology)
    kv_format = kv_format_of(topology, model, context.source.refuse)
    table = topology.router
    tenants = Tenants(table.tenants)
    async with AsyncExitStack() as held:
        nodes = await _connect_nodes(topology, kv_format, held)
        clock = LoopClock()
        driver = Driver(
            await _connect_workers(topology, nodes, held),
            kv_format=kv_format,
            clock=clock,
            rates=declared_rates(topology),
            settings=driver_settings(table),
            agreement=Agreement(model=model.name, max_model_tokens=topology.max_model_tokens, kv_format=kv_format),
            sink=await _open_trace(table, clock, held),
        )
        await held.enter_async_context(driver.running())
        application = create_app(
            service=driver,
            model=model,
            text=await asyncio.to_thread(model.load_text),
            limits=Limits(max_model_tokens=topology.max_model_tokens, keep_alive_s=table.keep_alive_s),
            tenants=tenants,
            callers=Callers.of(table),
            answers=AnswerMemory(max_tokens_per_tenant=table.max_answer_memory_tokens),
            metrics=RouterMetrics(lambda: read_router(driver)),
            health=lambda: health_of(read_router(driver)),
        )
        await held.enter_async_context(serve(application, host=table.host, port=table.port, tenants=tenants))
        context.on_ready()
        await asyncio.Event().wait()


async def _open_trace(table: RouterTable, clock: Clock, held: AsyncExitStack) -> EventSink | None:
    if table.trace_file is None:
        return None
    trace = LiveTrace(Path(table.trace_file), clock, unix_time=time.time())
    await held.enter_async_context(trace.writing())
    return trace.record


async def _connect_nodes(topology: Topology, kv_format: KvFormat, held: AsyncExitStack) -> Mapping[NodeId, NodeClient]:
    nodes: dict[NodeId, NodeClient] = {}
    for node in topology.nodes:
        address = topology.address_of(node, seen_from=topology.router.cluster)
        client = TcpNodeClient(node=node.name, address=address, kv_format=kv_format)
        nodes[node.name] = await held.enter_async_context(client)
    return nodes


async def _connect_workers(
    topology: Topology, nodes: Mapping[NodeId, NodeClient], held: AsyncExitStack
) -> tuple[Worker, ...]:
    session = await held.enter_async_context(engine_session())
    return tuple(
        Worker(
            engine=HttpEngineClient(
                engine.name, topology.address_of(engine, seen_from=topology.router.cluster), session=session
            ),
            node=nodes[engine.node],
            role=engine.role,
            cluster=engine.cluster,
            max_batch=engine.max_batch,
        )
        for engine in topology.engines
    )


def health_of(reading: RouterReading) -> Health:
    """Every route begins at prefill and ends at a decoder: at relay decode alone while no main decode is up."""
    roles = {role: _count(reading.workers, role) for role in Role}
    decoders = roles[Role.MAIN_DECODE].up + roles[Role.RELAY_DECODE].up
    return Health(
        can_serve=roles[Role.PREFILL].up > 0 and decoders > 0,
        roles=roles,
        workers={
            worker.worker: WorkerHealth(
                up=worker.up, requests=worker.running, breaker=worker.breaker.value, reason=worker.why_down
            )
            for worker in reading.workers
        },
        num_served=reading.num_served,
        num_queued=reading.num_queued,
    )


def _count(workers: Sequence[WorkerStatus], role: Role) -> WorkerCount:
    """Workers of ``role`` that are up, and all there are."""
    of_role = [worker for worker in workers if worker.role is role]
    return WorkerCount(up=sum(worker.up for worker in of_role), configured=len(of_role))
