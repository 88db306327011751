"""Runs a workload on a topology of modelled engines: the whole deployment, on a virtual clock, in one call."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TypeVar

from pdd.core.errors import ConfigError, PddError
from pdd.core.ids import WorkerId
from pdd.core.kv_format import KvFormat
from pdd.core.topology import EngineKind, EngineTable, LinkTable, NodeTable, Topology
from pdd.core.units import Bytes, BytesPerSecond, Seconds, bytes_per_second
from pdd.router.clock import LoopClock
from pdd.router.driver.bounds.settings import driver_settings
from pdd.sim.client import Clients
from pdd.sim.engine import MAX_SPAN, EngineLimits, ModelledEngine, Prefilled
from pdd.sim.engine_time import StepTimes
from pdd.sim.line import FluidLine
from pdd.sim.loop import run as run_on_virtual_time
from pdd.sim.memory.node import MemoryNode
from pdd.sim.profile import HardwareProfile, ModelProfile, load_hardware, load_model
from pdd.sim.result import Reading, RunResult
from pdd.sim.script import Scripts
from pdd.sim.workload.base import Workload, check_length
from pdd.sim.world import World, build_world, running
from pdd.telemetry.events import EventSink

_LOCAL_DELAY = Seconds(0.00002)
_NUM_READINGS = 200
_LEAST_READING_INTERVAL = Seconds(0.5)
_COLLECTIONS = (200_000, 10, 10)
_PATIENCE = Seconds(6 * 3600.0)
"""How long after the last arrival everything must be over."""

Progress = Callable[[int, int], None]
"""Told now and then how many requests have ended, of how many."""


def simulate(
    topology: Topology,
    workload: Workload,
    *,
    seed: int,
    trace: EventSink | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Runs ``workload`` to its end. ``trace`` gets every event of every request. ``seed`` draws what lines jitter.

    Raises:
        ConfigError: the topology can't be simulated: a profile is missing, or an engine doesn't fit its chips. Or the
            workload is empty, or lasts too long.
        PddError: a client got wrong tokens, or requests never ended: a bug in what is simulated.
    """
    if not workload.requests:
        raise ConfigError(f"workload {workload.name!r} has no requests")
    check_length(workload.name, workload.last_arrival)
    with _rare_collections():
        return run_on_virtual_time(_simulate(topology, workload, Random(seed), trace, progress))  # noqa: S311 - no secrets here


@contextmanager
def _rare_collections() -> Generator[None]:
    """Long prompts make each of the collector's walks expensive, and there is little for it: a quarter of the time is
    saved.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _simulate(
    topology: Topology, workload: Workload, chance: Random, trace: EventSink | None, progress: Progress | None
) -> RunResult:
    with ExitStack() as stack:
        simulation = _build(topology, workload, chance, trace)
        for engine in simulation.engines.values():
            stack.callback(engine.close)
        async with running(simulation.world):
            await _run_clients(simulation, workload, progress)
        return _result(simulation)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Simulation:
    world: World
    engines: Mapping[WorkerId, ModelledEngine]
    lines: Mapping[tuple[str, str], FluidLine]
    clients: Clients
    readings: list[Reading]

    def read(self, now: float) -> None:
        """Writes down how things stand."""
        driver = self.world.driver
        self.readings.append(
            Reading(
                at=Seconds(now),
                running={status.worker: status.running for status in driver.beliefs.workers.status(driver.now)},
                queued=driver.room.num_waiting,
                wan_bytes={link.name: self._carried(link) for link in self.world.topology.links},
                held_blocks={name: node.life.index.num_held for name, node in self.world.nodes.items()},
            )
        )

    def _carried(self, link: LinkTable) -> Bytes:
        """Both ways together."""
        one, other = link.clusters
        return Bytes(self.lines[one, other].carried_bytes + self.lines[other, one].carried_bytes)


async def _run_clients(simulation: _Simulation, workload: Workload, progress: Progress | None) -> None:
    last_arrival = workload.last_arrival
    interval = max(_LEAST_READING_INTERVAL, last_arrival / _NUM_READINGS)
    async with asyncio.TaskGroup() as tasks:
        reader = tasks.create_task(_keep_reading(simulation, interval, progress), name="readings")
        try:
            async with asyncio.timeout(last_arrival + _PATIENCE):
                await simulation.clients.run(simulation.world.driver)
        except TimeoutError as error:
            num_ended = len(simulation.clients.samples)
            raise PddError(f"only {num_ended} of {len(workload.requests)} requests have ever ended") from error
        finally:
            reader.cancel()
    simulation.read(asyncio.get_running_loop().time())


async def _keep_reading(simulation: _Simulation, interval: float, progress: Progress | None) -> None:
    loop = asyncio.get_running_loop()
    while True:
        simulation.read(loop.time())
        if progress is not None:
            progress(len(simulation.clients.samples), simulation.clients.num_requests)
        await asyncio.sleep(interval)


def _result(simulation: _Simulation) -> RunResult:
    samples = tuple(simulation.clients.samples)
    begin = min(sample.sent_at for sample in samples)
    end = max(sample.sent_at + sample.ended_s for sample in samples)
    return RunResult(
        samples=samples,
        readings=tuple(simulation.readings),
        duration_s=Seconds(end - begin),
        link_rates={link.name: bytes_per_second(link.rate_bits_per_s) for link in simulation.world.topology.links},
    )


# The world ------------------------------------------------------------------------------------------------------------


def _build(topology: Topology, workload: Workload, chance: Random, trace: EventSink | None) -> _Simulation:
    model = load_model(topology.model)
    kv_format = model.kv_format(topology.block_tokens)
    hardware = {table.name: _hardware_of(table) for table in topology.engines}
    scripts = Scripts(kv_format)
    clients = Clients(workload, scripts=scripts, kv_format=kv_format, clock=LoopClock())
    maker = _EngineMaker(topology, model, kv_format, hardware, scripts, clients.prefilled)
    local_rate = partial(_local_rate, topology, hardware)
    world = build_world(
        topology,
        kv_format,
        maker.make,
        make_line=partial(_make_line, chance),
        make_local_line=lambda source, target: FluidLine(rate=local_rate(source, target), delay=_LOCAL_DELAY),
        payload_bytes=0,
        settings=replace(driver_settings(topology.router), local_rate=_slowest_local_rate(topology, hardware)),
        sink=trace,
    )
    return _Simulation(
        world=world,
        engines=_all_of(ModelledEngine, world.engines),
        lines=_all_of(FluidLine, world.lines),
        clients=clients,
        readings=[],
    )


@dataclass(frozen=True, slots=True)
class _EngineMaker:
    topology: Topology
    model: ModelProfile
    kv_format: KvFormat
    hardware: Mapping[WorkerId, HardwareProfile]
    scripts: Scripts
    on_prefilled: Callable[[Prefilled], None]

    def make(self, table: EngineTable, node: MemoryNode) -> ModelledEngine:
        return ModelledEngine(
            table.name,
            kv_format=self.kv_format,
            times=StepTimes(
                self.model,
                self.hardware[table.name],
                num_chips=table.num_chips,
                cache_tokens=table.cache_tokens,
                name=table.name,
            ),
            limits=EngineLimits(
                max_batch=table.max_batch,
                prefill_chunk_tokens=table.prefill_chunk_tokens,
                cache_tokens=table.cache_tokens,
                max_span=MAX_SPAN[table.role],
                max_model_tokens=self.topology.max_model_tokens,
            ),
            scripts=self.scripts,
            connect_store=partial(node.open_store, table.name),
            on_prefilled=self.on_prefilled,
        )


def _hardware_of(table: EngineTable) -> HardwareProfile:
    if table.kind is not EngineKind.MODELLED or table.hardware is None:
        raise ConfigError(f'engine {table.name!r}: a simulation needs kind = "modelled", and hardware')
    return load_hardware(table.hardware)


def _make_line(chance: Random, link: LinkTable) -> FluidLine:
    jitter = (lambda: Seconds(chance.uniform(0.0, link.jitter_s))) if link.jitter_s > 0 else None
    return FluidLine(rate=bytes_per_second(link.rate_bits_per_s), delay=link.delay_s, jitter=jitter)


def _local_rate(
    topology: Topology, hardware: Mapping[WorkerId, HardwareProfile], source: NodeTable, target: NodeTable
) -> BytesPerSecond:
    """Between two nodes of one cluster: what the smallest engine at either has for a network."""
    return BytesPerSecond(
        min(
            table.num_chips * hardware[table.name].network_bytes_per_s
            for table in topology.engines
            if table.node in (source.name, target.name)
        )
    )


def _slowest_local_rate(topology: Topology, hardware: Mapping[WorkerId, HardwareProfile]) -> BytesPerSecond:
    return BytesPerSecond(min(table.num_chips * hardware[table.name].network_bytes_per_s for table in topology.engines))


_KeyT = TypeVar("_KeyT")
_ValueT = TypeVar("_ValueT")


def _all_of(kind: type[_ValueT], values: Mapping[_KeyT, object]) -> dict[_KeyT, _ValueT]:
    """The values as what they were made as."""
    return {key: value for key, value in values.items() if isinstance(value, kind)}
