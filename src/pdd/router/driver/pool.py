"""The engines, by role: who is up, and who gets the next request.

A worker is up from one answer to ``info`` on until it fails: a health check, or a generation in mid-stream. The latter
makes it suspect at once and has it checked at once. Picks go to the worker with the fewest seats taken, the lowest name
among equals, so that the same events always lead to the same picks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pdd.core.clock import Clock
from pdd.core.errors import NodeFailed, PddError
from pdd.core.ids import NodeId, NodeInstance, WorkerId
from pdd.core.request import Role
from pdd.engine.base import EngineClient
from pdd.kvnode.base import NodeClient, NodeStats
from pdd.router.driver.settings import DriverSettings

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One engine, its role, its cluster and the KV node on its machine. Several workers may share a node."""

    engine: EngineClient
    node: NodeClient
    role: Role
    cluster: str
    max_batch: int = 16
    """How many generations run at once; its load is measured by this."""

    @property
    def name(self) -> WorkerId:
        return self.engine.worker


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """A request's place at a worker, at one lifetime of its process. Give it back with ``Pool.release``."""

    worker: Worker
    instance: str


@dataclass(slots=True)
class _State:
    worker: Worker
    instance: str | None = None
    up: bool = False
    restarts: int = 0
    seats: list[Seat] = field(default_factory=list[Seat])
    check_now: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """How a worker is, for health endpoints and metrics."""

    worker: WorkerId
    role: Role
    up: bool
    running: int
    restarts: int


class Pool:
    """Knows every worker of the topology. Its checks run between ``start`` and ``stop``."""

    def __init__(self, workers: Sequence[Worker], settings: DriverSettings, clock: Clock) -> None:
        ordered = sorted(workers, key=lambda worker: worker.name)
        self._states = {worker.name: _State(worker) for worker in ordered}
        self._nodes = {worker.node.node: worker.node for worker in ordered}
        self._node_stats: dict[NodeId, NodeStats] = {}
        self._settings = settings
        self._clock = clock
        self._checks: list[asyncio.Task[None]] = []

    async def check_all(self) -> None:
        """Asks everybody once."""
        async with asyncio.TaskGroup() as checks:
            for state in self._all():
                checks.create_task(self._check(state), name=f"first check of {state.worker.name}")
            for node in self._nodes.values():
                checks.create_task(self._check_node(node), name=f"first check of {node.node}")

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Asks everybody again and again until ``stop``."""
        for state in self._all():
            check = self._keep_checking(state)
            self._checks.append(tasks.create_task(check, name=f"checks of {state.worker.name}"))
        for node in self._nodes.values():
            check = self._keep_checking_node(node)
            self._checks.append(tasks.create_task(check, name=f"checks of {node.node}"))

    def stop(self) -> None:
        """Ends the checks."""
        for task in self._checks:
            task.cancel()

    def has(self, role: Role) -> bool:
        """Whether a worker of ``role`` is up."""
        return any(state.up for state in self._all(role))

    def pick(self, role: Role, *, avoid: frozenset[WorkerId] = frozenset()) -> Seat | None:
        """A seat at a worker that is up; one of ``avoid`` only if there is no other. None: nobody is up."""
        states = [state for state in self._all(role) if state.up and state.instance is not None]
        if not states:
            return None
        chosen = min(states, key=lambda s: (s.worker.name in avoid, len(s.seats), s.worker.name))
        assert chosen.instance is not None
        seat = Seat(chosen.worker, chosen.instance)
        chosen.seats.append(seat)
        return seat

    def release(self, seat: Seat) -> None:
        """Gives a seat back. Idempotent."""
        seats = self._states[seat.worker.name].seats
        if seat in seats:
            seats.remove(seat)

    def holds(self, seat: Seat) -> bool:
        """Whether the process that the seat was taken at is still up."""
        state = self._states[seat.worker.name]
        return state.up and state.instance == seat.instance

    def suspect(self, seat: Seat) -> None:
        """A generation failed at this seat: nobody else is sent there before the worker has answered a check."""
        state = self._states[seat.worker.name]
        if state.instance != seat.instance:
            return  # that process is gone already; what runs there now has done nothing wrong
        self._set_down(state, "a generation failed")
        state.check_now.set()

    def node_instance(self, node: NodeId) -> NodeInstance | None:
        """The node's lifetime when it last answered."""
        stats = self._node_stats.get(node)
        return None if stats is None else stats.instance

    @property
    def node_stats(self) -> Mapping[NodeId, NodeStats]:
        """The books of those nodes that answered the last check."""
        return self._node_stats

    def status(self) -> tuple[WorkerStatus, ...]:
        return tuple(
            WorkerStatus(
                worker=state.worker.name,
                role=state.worker.role,
                up=state.up,
                running=len(state.seats),
                restarts=state.restarts,
            )
            for state in self._all()
        )

    def _all(self, role: Role | None = None) -> list[_State]:
        return [state for state in self._states.values() if role is None or state.worker.role is role]

    async def _keep_checking(self, state: _State) -> None:
        while True:
            await self._wait_for_check(state)
            await self._check(state)

    async def _wait_for_check(self, state: _State) -> None:
        try:
            async with asyncio.timeout(self._settings.health_interval):
                await state.check_now.wait()
        except TimeoutError:
            pass
        state.check_now.clear()

    async def _check(self, state: _State) -> None:
        try:
            async with asyncio.timeout(self._settings.health_timeout):
                info = await state.worker.engine.info()
        except TimeoutError:
            self._set_down(state, "no answer to a health check")
        except PddError as error:
            self._set_down(state, str(error))
        except Exception:
            _logger.exception("health_check_crashed worker=%s", state.worker.name)
            self._set_down(state, "its health check crashed")
        else:
            self._set_up(state, info.instance)

    def _set_up(self, state: _State, instance: str) -> None:
        if state.check_now.is_set():
            return  # it failed while the answer was on its way: only a later answer counts
        if state.instance not in (None, instance):
            state.restarts += 1
        if not state.up:
            _logger.info("worker_up worker=%s role=%s", state.worker.name, state.worker.role)
        state.up, state.instance = True, instance

    def _set_down(self, state: _State, why: str) -> None:
        if state.up:
            _logger.warning("worker_down worker=%s role=%s reason=%s", state.worker.name, state.worker.role, why)
        state.up = False

    async def _keep_checking_node(self, node: NodeClient) -> None:
        while True:
            await self._clock.sleep(self._settings.health_interval)
            await self._check_node(node)

    async def _check_node(self, node: NodeClient) -> None:
        try:
            async with asyncio.timeout(self._settings.health_timeout):
                self._node_stats[node.node] = await node.stats()
        except (TimeoutError, NodeFailed):
            self._node_stats.pop(node.node, None)
