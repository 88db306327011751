"""Carries out a scene's faults on a running world, and remembers who could serve when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from math import inf

from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Role
from pdd.core.units import BytesPerSecond, Seconds
from pdd.engine.scripted.engine import Faults
from pdd.protocol.relay import Command
from pdd.sim.chaos.compose import HOME
from pdd.sim.chaos.scene import AtCommand, AtTime, Fault, FaultKind, Scene
from pdd.sim.chaos.upstream import FaultyEngine, FaultyNode, Upstream
from pdd.sim.loop import VirtualTimeLoop
from pdd.sim.memory.line import Line
from pdd.sim.world import World

Note = Callable[[str], None]

_LAG = Seconds(0.05)
"""By how much a node lags for each time that it is slower."""


class History:
    """When which engine could not be relied on."""

    def __init__(self) -> None:
        self._spells: dict[WorkerId, list[tuple[float, float]]] = {}

    def begin(self, worker: WorkerId, now: float) -> Callable[[float], None]:
        """From now on it can't, until the returned function is called with the time."""
        spells = self._spells.setdefault(worker, [])
        index = len(spells)
        spells.append((now, inf))

        def end(at: float) -> None:
            spells[index] = (now, at)

        return end

    def was_whole(self, worker: WorkerId, since: float, until: float) -> bool:
        """Whether it could be relied on all the time from ``since`` to ``until``."""
        return all(end < since or begin > until for begin, end in self._spells.get(worker, ()))


class CommandWatch:
    """Counts the router's commands, and wakes who waits for the n-th of one kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._changed: dict[str, list[tuple[int, asyncio.Event]]] = {}

    def saw(self, command: Command) -> None:
        """The driver's command hook, for each command of each request."""
        kind = type(command).__name__
        self._count(kind)
        role: Role | None = getattr(command, "role", None) or getattr(command, "target", None)
        if role is not None:
            self._count(f"{kind} {role}")

    async def wait_for(self, trigger: AtCommand) -> None:
        """Until the command was given so often."""
        name = trigger.command if trigger.role is None else f"{trigger.command} {trigger.role}"
        if self.counts[name] < trigger.nth:
            event = asyncio.Event()
            self._changed.setdefault(name, []).append((trigger.nth, event))
            await event.wait()

    def give_up(self) -> None:
        """Nothing will happen any more: wakes everybody."""
        for waiting in self._changed.values():
            for _, event in waiting:
                event.set()

    def _count(self, name: str) -> None:
        self.counts[name] += 1
        for nth, event in self._changed.get(name, ()):
            if self.counts[name] >= nth:
                event.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakable:
    """What faults act on."""

    scene: Scene
    world: World
    engines: Mapping[WorkerId, FaultyEngine]
    nodes: Mapping[NodeId, FaultyNode]
    history: History
    commands: CommandWatch


class Breakage:
    """Runs the faults of a scene as tasks. ``end`` before they are awaited: then all that can become whole does."""

    def __init__(self, breakable: Breakable, note: Note) -> None:
        self.num_faults = 0
        self._breakable = breakable
        self._note = note
        self._over = asyncio.Event()
        self._broken: set[tuple[str, ...]] = set()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Every fault waits for its moment."""
        for index, fault in enumerate(self._breakable.scene.faults):
            tasks.create_task(self._live(fault), name=f"fault {index}")

    def end(self) -> None:
        """No fault begins any more; those that last end, a killed process aside that nobody was to restart."""
        self._over.set()
        self._breakable.commands.give_up()

    async def _live(self, fault: Fault) -> None:
        await self._wait_for_its_moment(fault)
        # One thing has one trouble at a time: two that end each other's would say little about either.
        if self._over.is_set() or fault.target in self._broken:
            return
        self._broken.add(fault.target)
        self.num_faults += 1
        self._note(f"fault {fault.kind} of {' '.join(fault.target)} begins")
        ends_at = None if fault.duration is None else _now() + fault.duration
        async with self._broken_while(fault):
            await self._last_until(ends_at)
        self._broken.discard(fault.target)
        self._note(f"fault {fault.kind} of {' '.join(fault.target)} is over")

    async def _wait_for_its_moment(self, fault: Fault) -> None:
        match fault.trigger:
            case AtTime():
                await asyncio.sleep(fault.trigger.at)
            case AtCommand():
                await self._breakable.commands.wait_for(fault.trigger)
                await asyncio.sleep(fault.trigger.delay)

    async def _last_until(self, ends_at: float | None) -> None:
        try:
            async with asyncio.timeout_at(ends_at):
                await self._over.wait()
        except TimeoutError:
            pass

    @asynccontextmanager
    async def _broken_while(self, fault: Fault) -> AsyncGenerator[None]:
        match fault.kind:
            case FaultKind.NODE_KILL | FaultKind.NODE_HANG | FaultKind.NODE_SLOW | FaultKind.NODE_BREAK:
                context = self._node_broken(fault)
            case FaultKind.HOST_FREEZE:
                context = self._host_frozen(NodeId(fault.target[0]))
            case FaultKind.WORLD_FREEZE:
                context = self._world_frozen(fault)
            case FaultKind.LAN_CUT | FaultKind.LAN_STALL | FaultKind.LAN_SLOW:
                context = self._lan_broken(fault)
            case FaultKind.WAN_CUT | FaultKind.WAN_STALL | FaultKind.WAN_SLOW:
                context = self._wan_broken(fault)
            case _:
                context = self._engine_broken(fault)
        async with context:
            yield

    # Engines ----------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _engine_broken(self, fault: Fault) -> AsyncGenerator[None]:
        worker = WorkerId(fault.target[0])
        engine = self._breakable.engines[worker]
        end = None if fault.kind is FaultKind.ENGINE_SLOW else self._breakable.history.begin(worker, _now())
        mend = _break_engine(engine, fault)
        yield
        if fault.kind is FaultKind.ENGINE_KILL and fault.duration is None:
            return
        mend()
        if end is not None:
            end(_now())

    # Nodes ------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _node_broken(self, fault: Fault) -> AsyncGenerator[None]:
        name = NodeId(fault.target[0])
        faulty, node = self._breakable.nodes[name], self._breakable.world.nodes[name]
        match fault.kind:
            case FaultKind.NODE_KILL:
                node.kill()
                await faulty.break_off()
                yield
                if fault.duration is not None:
                    node.restart()
            case FaultKind.NODE_HANG:
                node.hang()
                yield
                node.resume()
            case FaultKind.NODE_SLOW:
                node.slow_down(Seconds(fault.factor * _LAG))
                yield
                node.slow_down(Seconds(0.0))
            case _:
                await faulty.break_off()
                yield

    # Machines ---------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _host_frozen(self, host: NodeId) -> AsyncGenerator[None]:
        node = self._breakable.world.nodes[host]
        workers = [table.name for table in self._breakable.world.topology.engines if table.node == host]
        with self._unreliable(workers):
            upstreams = [self._breakable.engines[worker].upstream for worker in workers]
            for upstream in upstreams:
                upstream.hold()
            node.hang()
            yield
            node.resume()
            for upstream in upstreams:
                upstream.let_go()

    @asynccontextmanager
    async def _world_frozen(self, fault: Fault) -> AsyncGenerator[None]:
        """Over in one jump of the clock, before anybody can notice that it began."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        assert fault.duration is not None
        with self._unreliable(list(self._breakable.engines)):
            loop.advance(fault.duration)
        yield

    @contextmanager
    def _unreliable(self, workers: Sequence[WorkerId]) -> Generator[None]:
        ends = [self._breakable.history.begin(worker, _now()) for worker in workers]
        yield
        for end in ends:
            end(_now())

    # Lines ------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _lan_broken(self, fault: Fault) -> AsyncGenerator[None]:
        network = self._breakable.world.network
        source, target = (NodeId(name) for name in fault.target)
        lines = () if source == target else (network.line(source, target), network.line(target, source))
        async with self._lines_broken(lines, fault):
            yield

    @asynccontextmanager
    async def _wan_broken(self, fault: Fault) -> AsyncGenerator[None]:
        """What joins two clusters joins the router to the one abroad, too."""
        world = self._breakable.world
        link = world.topology.link(fault.target[0])
        abroad = next(cluster for cluster in link.clusters if cluster != HOME)
        lines = tuple(line for (source, target), line in world.lines.items() if {source, target} == set(link.clusters))
        async with self._lines_broken(lines, fault), self._unreached(abroad, fault.kind):
            yield

    @asynccontextmanager
    async def _lines_broken(self, lines: tuple[Line, ...], fault: Fault) -> AsyncGenerator[None]:
        network = self._breakable.world.network
        rates = [line.rate for line in lines]
        for line in lines:
            match fault.kind:
                case FaultKind.LAN_CUT | FaultKind.WAN_CUT:
                    network.cut(line)
                case FaultKind.LAN_STALL | FaultKind.WAN_STALL:
                    network.stall(line)
                case _:
                    line.rate = BytesPerSecond(line.rate / fault.factor)
        yield
        for line, rate in zip(lines, rates, strict=True):
            match fault.kind:
                case FaultKind.LAN_CUT | FaultKind.WAN_CUT:
                    network.restore(line)
                case FaultKind.LAN_STALL | FaultKind.WAN_STALL:
                    network.resume(line)
                case _:
                    line.rate = rate

    @asynccontextmanager
    async def _unreached(self, cluster: str, kind: FaultKind) -> AsyncGenerator[None]:
        """The router's connections into a cluster while its line is broken; a slow one is good enough for tokens."""
        if kind is FaultKind.WAN_SLOW:
            yield
            return
        topology = self._breakable.world.topology
        workers = [table.name for table in topology.engines if table.cluster == cluster]
        upstreams = [self._breakable.engines[worker].upstream for worker in workers]
        nodes = [self._breakable.nodes[table.name] for table in topology.nodes if table.cluster == cluster]
        everyone = (*upstreams, *(node.upstream for node in nodes))
        with self._unreliable(workers):
            for upstream in everyone:
                upstream.hold()
            if kind is FaultKind.WAN_CUT:
                for upstream in upstreams:
                    upstream.break_off()
                for node in nodes:
                    await node.break_off()
            yield
            for upstream in everyone:
                upstream.let_go()


def _break_engine(engine: FaultyEngine, fault: Fault) -> Callable[[], None]:
    """Breaks it; returns what makes it whole again."""
    upstream = engine.upstream
    match fault.kind:
        case FaultKind.ENGINE_KILL:
            engine.engine.die()
            return engine.engine.revive
        case FaultKind.ENGINE_HANG:
            upstream.hold()
            return upstream.let_go
        case FaultKind.ENGINE_SLOW:
            upstream.slowdown = fault.factor
            return lambda: _set_slowdown(upstream, 1.0)
        case FaultKind.ENGINE_UNREACHABLE:
            upstream.break_off()
            upstream.refuse()
            return upstream.accept
        case FaultKind.ENGINE_FULL:
            engine.is_full = True
            return lambda: _set_full(engine, is_full=False)
        case FaultKind.ENGINE_GARBAGE:
            return _follow(engine, Faults(garbage=fault.garbage, garbage_after_tokens=fault.after_tokens))
        case FaultKind.ENGINE_DIES_AT:
            return _follow(engine, Faults(die_after_tokens=fault.after_tokens))
        case FaultKind.ENGINE_HANGS_AT:
            return _follow(engine, Faults(hang_after_tokens=fault.after_tokens))
        case _:
            upstream.break_off()
            return lambda: None


def _follow(engine: FaultyEngine, faults: Faults) -> Callable[[], None]:
    """Has it follow a faulty script."""
    honest = engine.engine.script
    engine.engine.script = replace(honest, faults=faults)

    def mend() -> None:
        engine.engine.script = honest

    return mend


def _set_slowdown(upstream: Upstream, slowdown: float) -> None:
    upstream.slowdown = slowdown


def _set_full(engine: FaultyEngine, *, is_full: bool) -> None:
    engine.is_full = is_full


def _now() -> Seconds:
    return Seconds(asyncio.get_running_loop().time())
