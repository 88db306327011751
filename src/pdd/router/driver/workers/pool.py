"""The engines, by role: who is up, and who sits where.

A worker is up from an answered check on until so many checks in a row fail as the topology says; one that refuses its
connection is down at once, and so is one that, or whose node, disagrees with the deployment (``agreement``). A generation
that breaks off makes its worker suspect: it is asked at once, and nobody else is sent there before it has answered. When a worker is declared down, or another
process answers in its place, all that runs there is told (``Seat.down``): it need not wait for an answer that may never come.
Which of those that are up gets a request is chosen in ``router.driver.workers.placement``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from pdd.core.clock import Clock
from pdd.core.errors import Incompatible, NodeFailed, PddError
from pdd.core.ids import NodeId, NodeInstance, WorkerId
from pdd.core.replication import NodeStats
from pdd.core.request import Role
from pdd.core.units import Seconds
from pdd.engine.base import EngineInfo
from pdd.kvnode.base import NodeClient
from pdd.policy.health import Pulse
from pdd.policy.pace import RolePace
from pdd.router.driver.settings import DriverSettings
from pdd.router.driver.workers.agreement import Agreement
from pdd.router.driver.workers.worker import Attention, Lifetime, NodeState, Seat, Worker, WorkerState, WorkerStatus
from pdd.telemetry.events import Event, EventSink, Field

_logger = logging.getLogger(__name__)


class Pool:
    """Knows every worker of the topology. Its checks run between ``start`` and ``stop``.

    ``agreement`` is what engines and nodes are held to. None: whatever they say is right. ``sink`` is told of those that
    come and go.
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
        nodes = {worker.node.node: worker.node for worker in ordered}
        self._nodes = {name: NodeState(node, Attention(Pulse(settings.health))) for name, node in nodes.items()}
        self._states = {
            worker.name: WorkerState.of(worker, self._nodes[worker.node.node], settings.health) for worker in ordered
        }
        self._node_stats: dict[NodeId, NodeStats] = {}
        self._paces = {role: RolePace() for role in Role}
        self._health = settings.health
        self.clock = clock
        self._agreement = agreement
        self._sink = sink
        self._checks: list[asyncio.Task[None]] = []

    # Checks -----------------------------------------------------------------------------------------------------------

    async def check_all(self) -> None:
        """Asks everybody once."""
        async with asyncio.TaskGroup() as checks:
            for state in self._states.values():
                checks.create_task(self._check(state), name=f"first check of {state.worker.name}")
            for name, node in self._nodes.items():
                checks.create_task(self._check_node(node), name=f"first check of {name}")

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Asks everybody again and again until ``stop``."""
        for state in self._states.values():
            check = self._keep_checking(state)
            self._checks.append(tasks.create_task(check, name=f"checks of {state.worker.name}"))
        for name, node in self._nodes.items():
            check = self._keep_checking_node(node)
            self._checks.append(tasks.create_task(check, name=f"checks of {name}"))

    def stop(self) -> None:
        """Ends the checks."""
        for task in self._checks:
            task.cancel()

    # Who is there -----------------------------------------------------------------------------------------------------

    def has(self, role: Role) -> bool:
        """Whether a worker of ``role`` is up."""
        return any(state.up for state in self._of(role))

    def load(self, role: Role) -> float:
        """Seats taken per generation that can run at once, over the workers of ``role`` that are up; above 1, some wait.

        1 while nobody is up: there is no room.
        """
        capacity = self.capacity(role)
        return sum(len(state.seats) for state in self._of(role) if state.up) / capacity if capacity else 1.0

    def capacity(self, role: Role) -> int:
        """How many generations the workers of ``role`` that are up can run at once."""
        return sum(state.worker.max_batch for state in self._of(role) if state.up)

    def candidates(self, role: Role) -> list[WorkerState]:
        """Those who may get a request of ``role`` now, in the order of their names."""
        return [state for state in self._of(role) if state.up]

    def worker(self, name: WorkerId) -> Worker:
        return self._states[name].worker

    @property
    def nodes(self) -> Mapping[NodeId, NodeClient]:
        """The nodes of all workers."""
        return {name: state.node for name, state in self._nodes.items()}

    @property
    def node_stats(self) -> Mapping[NodeId, NodeStats]:
        """The books of those nodes that answered the last check. Always the same mapping, kept up to date."""
        return self._node_stats

    def node_instance(self, node: NodeId) -> NodeInstance | None:
        """The node's lifetime when it last answered."""
        stats = self._node_stats.get(node)
        return None if stats is None else stats.instance

    def node_is_late(self, node: NodeId) -> bool:
        """It is away, or has owed the answer to a check for a while."""
        return node not in self._node_stats or self._nodes[node].attention.is_late(self.clock.now())

    def node_returns(self, node: NodeId) -> int:
        """How often the node came (back): it answered after it had not, or as another process."""
        return self._nodes[node].returns

    def status(self) -> tuple[WorkerStatus, ...]:
        now = self.clock.now()
        return tuple(state.status(now) for state in self._states.values())

    # Seats ------------------------------------------------------------------------------------------------------------

    def take(self, name: WorkerId, *, num_missing: int = 0, num_blocks: int = 0) -> Seat:
        """A seat at a worker that is up, for a request that lacks so many blocks there and needs room for so many."""
        return self._states[name].take(self.clock.now(), num_missing=num_missing, num_blocks=num_blocks)

    def release(self, seat: Seat) -> None:
        """Gives a seat back. Idempotent."""
        self._states[seat.worker.name].release(seat)

    def holds(self, seat: Seat) -> bool:
        """Whether the process that the seat was taken at is still up."""
        state = self._states[seat.worker.name]
        return state.up and state.lifetime is seat.lifetime

    def suspect(self, seat: Seat) -> None:
        """A generation broke off at this seat, through the worker's fault. Of what breaks before the next answered
        check only the first counts as a failure: the end of one process breaks all that runs there.
        """
        state = self._states[seat.worker.name]
        if state.lifetime is not seat.lifetime:
            return  # that process is gone already; what runs there now has done nothing wrong
        if not state.suspect:
            state.breaker.failed(self.clock.now())
            breaker = state.breaker.state(self.clock.now())
            _logger.warning("worker_suspect worker=%s role=%s breaker=%s", seat.worker.name, seat.worker.role, breaker)
            self._tell("worker_suspect", state, breaker=breaker)
        state.suspect = True
        state.why_down = "a generation broke off, and no check was answered since"
        state.check_now.set()

    def vouch(self, seat: Seat) -> None:
        """A generation at this seat ended as it should."""
        self._states[seat.worker.name].breaker.succeeded(self.clock.now())

    # How fast they are ------------------------------------------------------------------------------------------------

    def pace(self, role: Role) -> RolePace:
        """Prefill's work is counted in blocks that were missing (and one for the rest), that of decoders in tokens."""
        return self._paces[role]

    def prefilled(self, seat: Seat, *, whole: bool) -> None:
        """Prefill's first token has come. The worker was busy with it since it came, or since the one before was done.

        Unless ``whole``: it was held in between, so how long it took is not known.
        """
        now, state = self.clock.now(), self._states[seat.worker.name]
        begun, state.last_prefill_at = max(seat.taken_at, state.last_prefill_at), now
        if whole:
            pace = self._paces[Role.PREFILL]
            pace.record(seat.worker.name, work=seat.num_missing + 1, seconds=Seconds(now - begun), now=now)

    def prefill_time(self, seat: Seat) -> Seconds | None:
        """How long prefill will take to its first token if nothing of the prompt is cached, after all that others lack
        there. None before any prefill was measured.
        """
        pace, state = self._paces[Role.PREFILL], self._states[seat.worker.name]
        if pace.unit_s is None:
            return None
        num_blocks = seat.num_blocks + state.num_missing + len(state.seats)
        return Seconds(num_blocks * pace.unit_s * pace.slowness(seat.worker.name, self.clock.now()))

    def begin_decoding(self, seat: Seat) -> int:
        """A decoder's first span has come, so it has a place in the batch; ``end_decoding`` must follow. Returns how many
        decode beside it.
        """
        state = self._states[seat.worker.name]
        state.num_decoding += 1
        return state.num_decoding - 1

    def end_decoding(self, seat: Seat, *, num_tokens: int, seconds: Seconds, beside: int) -> None:
        """It sent ``num_tokens`` after its first span, within ``seconds``, ``beside`` others when it began."""
        state = self._states[seat.worker.name]
        state.num_decoding -= 1
        if num_tokens:
            self._paces[seat.worker.role].record(
                seat.worker.name,
                work=num_tokens,
                seconds=seconds,
                now=self.clock.now(),
                beside=(beside + state.num_decoding) / 2,
            )

    def _of(self, role: Role) -> list[WorkerState]:
        return [state for state in self._states.values() if state.worker.role is role]

    # How workers are asked --------------------------------------------------------------------------------------------

    async def _keep_checking(self, state: WorkerState) -> None:
        while True:
            await self._wait_for_check(state)
            await self._check(state)

    async def _wait_for_check(self, state: WorkerState) -> None:
        try:
            async with asyncio.timeout(self._health.interval_s):
                await state.check_now.wait()
        except TimeoutError:
            pass
        state.check_now.clear()

    async def _check(self, state: WorkerState) -> None:
        asked = state.lifetime
        if asked is not None:
            asked.heard = False
        state.attention.asked(self.clock.now())
        try:
            async with asyncio.timeout(self._health.timeout_s):
                info = await state.worker.engine.info()
        except TimeoutError:
            if asked is not None and asked.heard:
                state.attention.heard()
            else:
                state.attention.pulse.missed()
                self._consider(state, f"no answer to a health check within {self._health.timeout_s:g} s")
                if state.lifetime is not None:
                    state.check_now.set()  # its silence was pause enough
        except PddError as error:
            self._set_down(state, str(error))
        except Exception:
            _logger.exception("health_check_crashed worker=%s", state.worker.name)
            self._set_down(state, "its health check crashed")
        else:
            self._on_answer(state, info)

    def _on_answer(self, state: WorkerState, info: EngineInfo) -> None:
        if state.check_now.is_set():
            return  # it failed while the answer was on its way: only a later answer counts
        why_not = state.node.why_not or self._why_not(info, state.worker)
        if why_not is not None:
            self._set_down(state, why_not)
            return
        state.suspect = False
        state.attention.answered()
        if state.attention.pulse.up:
            self._set_up(state, info.instance)

    def _why_not(self, info: EngineInfo, worker: Worker) -> str | None:
        return None if self._agreement is None else self._agreement.why_not_engine(info, node=worker.node.node)

    def _set_up(self, state: WorkerState, instance: str) -> None:
        if state.lifetime is not None and state.lifetime.instance == instance:
            return
        if state.lifetime is not None:
            state.lifetime.end()
        if state.last_instance not in (None, instance):
            state.restarts += 1
        state.lifetime, state.last_instance = Lifetime(instance), instance
        _logger.info("worker_up worker=%s role=%s restarts=%d", state.worker.name, state.worker.role, state.restarts)
        self._tell("worker_up", state, restarts=state.restarts)

    def _set_down(self, state: WorkerState, why: str) -> None:
        """At once, whatever the checks before said."""
        state.attention.pulse.refused()
        self._consider(state, why)

    def _consider(self, state: WorkerState, why: str) -> None:
        """A check failed: perhaps it is one too many."""
        before, state.why_down = state.why_down, why
        if state.lifetime is None and why != before:
            _logger.warning("worker_not_up worker=%s role=%s reason=%s", state.worker.name, state.worker.role, why)
        if state.lifetime is None or state.attention.pulse.up:
            return
        _logger.warning("worker_down worker=%s role=%s reason=%s", state.worker.name, state.worker.role, why)
        self._tell("worker_down", state, reason=why)
        lifetime, state.lifetime, state.suspect = state.lifetime, None, False
        lifetime.end()

    def _tell(self, name: str, state: WorkerState, **fields: Field) -> None:
        if self._sink is not None:
            of = {"worker": state.worker.name, "role": state.worker.role}
            self._sink(Event(at=self.clock.now(), name=name, fields={**of, **fields}))

    # How nodes are asked ----------------------------------------------------------------------------------------------

    async def _keep_checking_node(self, state: NodeState) -> None:
        while True:
            await self.clock.sleep(self._health.interval_s)
            await self._check_node(state)

    async def _check_node(self, state: NodeState) -> None:
        """Its last books stand for it until it is known to be away."""
        state.attention.asked(self.clock.now())
        try:
            async with asyncio.timeout(self._health.timeout_s):
                stats = await state.node.stats()
        except TimeoutError:
            state.attention.pulse.missed()
        except Incompatible as error:
            state.attention.pulse.refused()
            self._judge_node(state, str(error))
        except NodeFailed:
            state.attention.pulse.refused()
            self._judge_node(state, None)  # engines do without one that is away
        else:
            self._note_books(state, stats)
            self._judge_node(state, None if self._agreement is None else self._agreement.why_not_node(stats))
        if not state.attention.pulse.up:
            self._node_stats.pop(state.node.node, None)

    def _judge_node(self, node: NodeState, why_not: str | None) -> None:
        """The workers of a node that is not what it should be are down until their first check after it is."""
        node.why_not = why_not
        if why_not is not None:
            for state in self._states.values():
                if state.node is node:
                    self._set_down(state, why_not)

    def _note_books(self, state: NodeState, stats: NodeStats) -> None:
        state.attention.answered()
        if self.node_instance(stats.node) != stats.instance:
            state.returns += 1
        self._node_stats[stats.node] = stats
