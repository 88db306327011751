"""The engines and their nodes: asks each of them how it is, again and again, and tells what follows to whom it
concerns.

What their answers mean is decided in ``belief.workers``; which of those that are up gets a request, in
``policy.placement``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from pdd.belief.health import Lifetime
from pdd.belief.worker_state import Change, Seat, WorkerDown, WorkerNotUp, WorkerSuspect, WorkerUp
from pdd.belief.workers import Workers
from pdd.core.clock import Clock
from pdd.core.errors import Incompatible, NodeFailed, PddError
from pdd.core.ids import NodeId, WorkerId
from pdd.engine.base import EngineInfo
from pdd.kvnode.base import NodeClient
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.workers.agreement import Agreement
from pdd.router.driver.workers.worker import Worker
from pdd.telemetry.events import Event, EventSink, Field

_logger = logging.getLogger(__name__)


class Pool:
    """Reaches every worker of the topology. Its checks run between ``start`` and ``stop``.

    ``agreement`` is what engines and nodes are held to. None: whatever they say is right. ``sink`` is told of those
    that come and go.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        settings: DriverSettings,
        clock: Clock,
        *,
        agreement: Agreement | None = None,
        sink: EventSink | None = None,
    ) -> None:
        ordered = sorted(workers, key=lambda worker: worker.name)
        self.workers = Workers(ordered, settings.health)
        self.nodes: Mapping[NodeId, NodeClient] = {worker.node.node: worker.node for worker in ordered}
        self._check_now = {worker.name: asyncio.Event() for worker in ordered}
        self._health = settings.health
        self._clock = clock
        self._agreement = agreement
        self._sink = sink
        self._checks: list[asyncio.Task[None]] = []

    async def check_all(self) -> None:
        """Asks everybody once."""
        async with asyncio.TaskGroup() as checks:
            for name in self._check_now:
                checks.create_task(self._check(name), name=f"first check of {name}")
            for name, node in self.nodes.items():
                checks.create_task(self._check_node(node), name=f"first check of {name}")

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Asks everybody again and again until ``stop``."""
        for name in self._check_now:
            self._checks.append(tasks.create_task(self._keep_checking(name), name=f"checks of {name}"))
        for name, node in self.nodes.items():
            self._checks.append(tasks.create_task(self._keep_checking_node(node), name=f"checks of {name}"))

    def stop(self) -> None:
        """Ends the checks."""
        for task in self._checks:
            task.cancel()

    def suspect(self, seat: Seat[Worker]) -> None:
        """A generation broke off at this seat, through the worker's fault: it is asked at once how it is."""
        if not seat.down:  # of what runs there now nothing is known
            self._tell(seat.worker.name, self.workers.suspect(seat, self._clock.now()))
            self._check_now[seat.worker.name].set()

    # How workers are asked --------------------------------------------------------------------------------------------

    async def _keep_checking(self, name: WorkerId) -> None:
        while True:
            await self._wait_for_check(self._check_now[name])
            await self._check(name)

    async def _wait_for_check(self, check_now: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self._health.interval_s):
                await check_now.wait()
        except TimeoutError:
            pass
        check_now.clear()

    async def _check(self, name: WorkerId) -> None:
        worker = self.workers.worker(name)
        asked = self.workers.asked(name, self._clock.now())
        try:
            async with asyncio.timeout(self._health.timeout_s):
                info = await worker.engine.info()
        except TimeoutError:
            self._on_silence(name, asked)
        except PddError as error:
            self._tell(name, self.workers.refused(name, str(error)))
        except Exception:
            _logger.exception("health_check_crashed worker=%s", name)
            self._tell(name, self.workers.refused(name, "its health check crashed"))
        else:
            self._on_answer(worker, info)

    def _on_silence(self, name: WorkerId, asked: Lifetime | None) -> None:
        if asked is not None and asked.heard:
            self.workers.heard(name)
            return
        why = f"no answer to a health check within {self._health.timeout_s:g} s"
        self._tell(name, self.workers.missed(name, why))
        if self.workers.answers(name):
            self._check_now[name].set()  # its silence was pause enough

    def _on_answer(self, worker: Worker, info: EngineInfo) -> None:
        if self._check_now[worker.name].is_set():
            return  # it failed while the answer was on its way: only a later answer counts
        agreement = self._agreement
        why_not = None if agreement is None else agreement.why_not_engine(info, node=worker.node.node)
        self._tell(worker.name, self.workers.answered(worker.name, info.instance, why_not, self._clock.now()))

    # How nodes are asked ----------------------------------------------------------------------------------------------

    async def _keep_checking_node(self, node: NodeClient) -> None:
        while True:
            await self._clock.sleep(self._health.interval_s)
            await self._check_node(node)

    async def _check_node(self, node: NodeClient) -> None:
        self.workers.node_asked(node.node, self._clock.now())
        try:
            async with asyncio.timeout(self._health.timeout_s):
                stats = await node.stats()
        except TimeoutError:
            self.workers.node_missed(node.node)
        except Incompatible as error:
            self._tell_all(self.workers.node_refused(node.node, str(error)))
        except NodeFailed:
            self._tell_all(self.workers.node_refused(node.node, None))
        else:
            why_not = None if self._agreement is None else self._agreement.why_not_node(stats)
            self._tell_all(self.workers.node_answered(stats, why_not))

    # What is told -----------------------------------------------------------------------------------------------------

    def _tell_all(self, changes: Sequence[tuple[WorkerId, Change]]) -> None:
        for name, change in changes:
            self._tell(name, change)

    def _tell(self, name: WorkerId, change: Change | None) -> None:
        role = self.workers.worker(name).role
        match change:
            case None:
                pass
            case WorkerUp(restarts=restarts, ended=ended):
                self._end(ended)
                _logger.info("worker_up worker=%s role=%s restarts=%d", name, role, restarts)
                self._record("worker_up", name, restarts=restarts)
            case WorkerNotUp(why=why):
                _logger.warning("worker_not_up worker=%s role=%s reason=%s", name, role, why)
            case WorkerDown(why=why, ended=ended):
                _logger.warning("worker_down worker=%s role=%s reason=%s", name, role, why)
                self._record("worker_down", name, reason=why)
                self._end(ended)
            case WorkerSuspect(breaker=breaker):
                _logger.warning("worker_suspect worker=%s role=%s breaker=%s", name, role, breaker)
                self._record("worker_suspect", name, breaker=breaker)

    def _end(self, lifetime: Lifetime | None) -> None:
        if lifetime is not None:
            for error in lifetime.end():
                _logger.error("end_not_told instance=%s", lifetime.instance, exc_info=error)

    def _record(self, event: str, name: WorkerId, **fields: Field) -> None:
        if self._sink is not None:
            of = {"worker": name, "role": self.workers.worker(name).role}
            self._sink(Event(at=self._clock.now(), name=event, fields={**of, **fields}))
