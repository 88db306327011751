"""What is known of workers and their nodes: which are up, who sits where, how fast they are, what their nodes have room
for.

A worker is up from an answered check on until so many checks in a row fail as the topology says; one that refuses its
connection is down at once, and so is one that, or whose node, disagrees with the deployment. A generation that breaks
off makes its worker suspect: nobody else is sent there before it has answered. When a worker is declared down, or
another process answers in its place, its ``Lifetime`` ends, and all that runs there is told.

Each finding returns the ``Change`` that it makes, if it makes one, so that a shell can tell people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic

from pdd.belief.health import Attention, Breaker, Lifetime, Pulse
from pdd.belief.pace import RolePace
from pdd.belief.worker_state import (
    Change,
    NodeState,
    Seat,
    WorkerDown,
    WorkerNotUp,
    WorkerState,
    WorkerStatus,
    WorkerSuspect,
    WorkerT,
    WorkerUp,
)
from pdd.core.ids import NodeId, NodeInstance, WorkerId
from pdd.core.replication import NodeStats
from pdd.core.request import Role
from pdd.core.topology import HealthTable
from pdd.core.units import Seconds
from pdd.core.view import RoleView, WorkerView


class Workers(Generic[WorkerT]):
    """All workers of a router, in the order of their names. Not thread-safe."""

    def __init__(self, workers: Sequence[WorkerT], rule: HealthTable) -> None:
        ordered = sorted(workers, key=lambda worker: worker.name)
        self._nodes = {worker.site.node: NodeState(worker.site.node, Attention(Pulse(rule))) for worker in ordered}
        self._states = {
            worker.name: WorkerState(worker, self._nodes[worker.site.node], Attention(Pulse(rule)), Breaker(rule))
            for worker in ordered
        }
        self._of_role = {role: [state for state in self._states.values() if state.worker.role is role] for role in Role}
        self._paces = {role: RolePace() for role in Role}
        self._books: dict[NodeId, NodeStats] = {}

    # Who is there -----------------------------------------------------------------------------------------------------

    def worker(self, name: WorkerId) -> WorkerT:
        return self._states[name].worker

    def candidates(self, role: Role) -> list[WorkerState[WorkerT]]:
        """Those who may get a request of ``role`` now, in the order of their names."""
        return [state for state in self._of_role[role] if state.up]

    def role_view(self, role: Role) -> RoleView:
        """The workers of ``role`` that are up, together."""
        capacity = num_seats = 0
        for state in self._of_role[role]:
            if state.up:
                capacity += state.worker.max_batch
                num_seats += len(state.seats)
        return RoleView(capacity=capacity, num_seats=num_seats, pace=self._paces[role].view)

    def status(self, now: Seconds) -> tuple[WorkerStatus, ...]:
        return tuple(state.status(now) for state in self._states.values())

    # Nodes ------------------------------------------------------------------------------------------------------------

    @property
    def books(self) -> Mapping[NodeId, NodeStats]:
        """The books of those nodes that answered the last check. Always the same mapping, kept up to date."""
        return self._books

    def node_instance(self, node: NodeId) -> NodeInstance | None:
        """The node's lifetime when it last answered."""
        stats = self._books.get(node)
        return None if stats is None else stats.instance

    def node_is_late(self, node: NodeId, now: Seconds) -> bool:
        """It is away, or has owed the answer to a check for a while."""
        return node not in self._books or self._nodes[node].attention.is_late(now)

    def node_returns(self, node: NodeId) -> int:
        """How often the node came (back): it answered after it had not, or as another process."""
        return self._nodes[node].returns

    def view(self, state: WorkerState[WorkerT], now: Seconds) -> WorkerView:
        """What policies see of a worker that is up."""
        worker = state.worker
        return WorkerView(
            name=worker.name,
            num_seats=len(state.seats),
            max_batch=worker.max_batch,
            num_missing=state.num_missing,
            free_blocks=self._free_blocks(state.node),
            slowness=self._paces[worker.role].slowness(worker.name, now),
            late=state.is_late(now),
            trusted=state.breaker.lets_through(now),
        )

    def _free_blocks(self, node: NodeState) -> int | None:
        """What the node has room for; None while it is away.

        Its last books may be a second old, so what was promised to seats since then counts as well.
        """
        stats = self._books.get(node.node)
        if stats is None:
            return None
        return stats.capacity_blocks - max(stats.reserved_blocks + stats.leased_blocks, node.num_promised)

    # Seats ------------------------------------------------------------------------------------------------------------

    def take(self, name: WorkerId, now: Seconds, *, num_missing: int = 0, num_blocks: int = 0) -> Seat[WorkerT]:
        """A seat at a worker that is up, for a request that lacks so many blocks there and needs room for so many."""
        state = self._states[name]
        assert state.lifetime is not None
        seat = Seat(
            worker=state.worker,
            lifetime=state.lifetime,
            taken_at=now,
            num_missing=num_missing,
            num_blocks=num_blocks,
            is_trial=state.breaker.begin(now),
        )
        state.seats[seat] = None
        state.num_missing += num_missing
        state.node.num_promised += num_blocks
        return seat

    def release(self, seat: Seat[WorkerT]) -> None:
        """Gives a seat back. Idempotent."""
        state = self._of(seat)
        if seat in state.seats:
            del state.seats[seat]
            state.num_missing -= seat.num_missing
            state.node.num_promised -= seat.num_blocks
            if seat.is_trial:
                state.breaker.end_trial()

    def holds(self, seat: Seat[WorkerT]) -> bool:
        """Whether the process that the seat was taken at is still up."""
        state = self._of(seat)
        return state.up and state.lifetime is seat.lifetime

    def suspect(self, seat: Seat[WorkerT], now: Seconds) -> Change | None:
        """A generation broke off at this seat, through the worker's fault. Of what breaks before the next answered
        check only the first counts as a failure: the end of one process breaks all that runs there.
        """
        state = self._of(seat)
        if state.lifetime is not seat.lifetime or state.suspect:
            return None  # that process is gone already, and what runs there now has done nothing wrong; or it is known
        state.breaker.failed(now)
        state.suspect = True
        state.why_down = "a generation broke off, and no check was answered since"
        return WorkerSuspect(breaker=state.breaker.state(now))

    def vouch(self, seat: Seat[WorkerT], now: Seconds) -> None:
        """A generation at this seat ended as it should."""
        self._of(seat).breaker.succeeded(now)

    # How fast they are ------------------------------------------------------------------------------------------------

    def pace(self, role: Role) -> RolePace:
        """Prefill's work is counted in blocks that were missing (and one for the rest), that of decoders in tokens."""
        return self._paces[role]

    def prefilled(self, seat: Seat[WorkerT], now: Seconds, *, whole: bool) -> None:
        """Prefill's first token has come. The worker was busy with it since it came, or since the one before was done.

        Unless ``whole``: it was held in between, so how long it took is not known.
        """
        state = self._of(seat)
        begun, state.last_prefill_at = max(seat.taken_at, state.last_prefill_at), now
        if whole:
            pace = self._paces[Role.PREFILL]
            pace.record(seat.worker.name, work=seat.num_missing + 1, seconds=Seconds(now - begun), now=now)

    def prefill_time(self, seat: Seat[WorkerT], now: Seconds) -> Seconds | None:
        """How long prefill will take to its first token if nothing of the prompt is cached, after all that others lack
        there. None before any prefill was measured.
        """
        pace, state = self._paces[Role.PREFILL], self._of(seat)
        if pace.unit_s is None:
            return None
        num_blocks = seat.num_blocks + state.num_missing + len(state.seats)
        return Seconds(num_blocks * pace.unit_s * pace.slowness(seat.worker.name, now))

    def begin_decoding(self, seat: Seat[WorkerT]) -> int:
        """A decoder's first span has come, so it has a place in the batch; ``end_decoding`` must follow. Returns how
        many decode beside it.
        """
        state = self._of(seat)
        state.num_decoding += 1
        return state.num_decoding - 1

    def end_decoding(
        self, seat: Seat[WorkerT], now: Seconds, *, num_tokens: int, seconds: Seconds, beside: int
    ) -> None:
        """It sent ``num_tokens`` after its first span, within ``seconds``, ``beside`` others when it began."""
        state = self._of(seat)
        state.num_decoding -= 1
        if num_tokens:
            crowd = (beside + state.num_decoding) / 2
            pace = self._paces[seat.worker.role]
            pace.record(seat.worker.name, work=num_tokens, seconds=seconds, now=now, beside=crowd)

    # Checks of engines ------------------------------------------------------------------------------------------------

    def asked(self, name: WorkerId, now: Seconds) -> Lifetime | None:
        """A check begins; returns the lifetime that is asked after."""
        state = self._states[name]
        if state.lifetime is not None:
            state.lifetime.heard = False
        state.attention.asked(now)
        return state.lifetime

    def answers(self, name: WorkerId) -> bool:
        """Its process counts as there, whether or not requests may be sent to it."""
        return self._states[name].lifetime is not None

    def answered(self, name: WorkerId, instance: str, why_not: str | None, now: Seconds) -> Change | None:
        """A check was answered by the process ``instance``. ``why_not``: what the deployment holds against it."""
        state = self._states[name]
        why_not = state.node.why_not or why_not
        if why_not is not None:
            return self.refused(name, why_not)
        state.suspect = False
        state.attention.answered()
        return self._set_up(state, instance, now) if state.attention.pulse.up else None

    def missed(self, name: WorkerId, why: str) -> Change | None:
        """A check was not answered in time."""
        state = self._states[name]
        state.attention.pulse.missed()
        return self._consider(state, why)

    def heard(self, name: WorkerId) -> None:
        """A check was not answered in time, but a stream of the same process went on."""
        self._states[name].attention.heard()

    def refused(self, name: WorkerId, why: str) -> Change | None:
        """Nobody is there, or one of whom nothing can be wanted: it is down at once, whatever the checks
        before said.
        """
        state = self._states[name]
        state.attention.pulse.refused()
        return self._consider(state, why)

    def _set_up(self, state: WorkerState[WorkerT], instance: str, now: Seconds) -> Change | None:
        if state.lifetime is not None and state.lifetime.instance == instance:
            return None
        if state.last_instance not in (None, instance):
            state.restarts += 1
        ended, state.lifetime, state.last_instance = state.lifetime, Lifetime(instance, now), instance
        return WorkerUp(restarts=state.restarts, ended=ended)

    def _consider(self, state: WorkerState[WorkerT], why: str) -> Change | None:
        """A check failed: perhaps it is one too many."""
        before, state.why_down = state.why_down, why
        if state.lifetime is None:
            return None if why == before else WorkerNotUp(why=why)
        if state.attention.pulse.up:
            return None
        lifetime, state.lifetime = state.lifetime, None
        return WorkerDown(why=why, ended=lifetime)

    # Checks of nodes --------------------------------------------------------------------------------------------------

    def node_asked(self, node: NodeId, now: Seconds) -> None:
        """A check begins."""
        self._nodes[node].attention.asked(now)

    def node_answered(self, stats: NodeStats, why_not: str | None) -> list[tuple[WorkerId, Change]]:
        """Its books. ``why_not``: what the deployment holds against it."""
        state = self._nodes[stats.node]
        state.attention.answered()
        if self.node_instance(stats.node) != stats.instance:
            state.returns += 1
        self._note_books(state, stats)
        return self._judge(state, why_not)

    def node_missed(self, node: NodeId) -> None:
        """No answer in time. Its last books stand for it until it is known to be away."""
        self._nodes[node].attention.pulse.missed()
        self._note_books(self._nodes[node], None)

    def node_refused(self, node: NodeId, why_not: str | None) -> list[tuple[WorkerId, Change]]:
        """It is away (None: engines do without it), or answers and disagrees."""
        state = self._nodes[node]
        state.attention.pulse.refused()
        self._note_books(state, None)
        return self._judge(state, why_not)

    def _judge(self, node: NodeState, why_not: str | None) -> list[tuple[WorkerId, Change]]:
        """The workers of a node that is not what it should be are down until their first check after it is."""
        node.why_not = why_not
        if why_not is None:
            return []
        changes = ((name, self.refused(name, why_not)) for name, state in self._states.items() if state.node is node)
        return [(name, change) for name, change in changes if change is not None]

    def _note_books(self, state: NodeState, stats: NodeStats | None) -> None:
        if stats is not None:
            self._books[state.node] = stats
        if not state.attention.pulse.up:
            self._books.pop(state.node, None)

    def _of(self, seat: Seat[WorkerT]) -> WorkerState[WorkerT]:
        return self._states[seat.worker.name]
