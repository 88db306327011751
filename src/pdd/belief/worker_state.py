"""What changes about one worker and its node, a seat there, and the changes that people are told of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pdd.belief.health import Attention, Breaker, BreakerState, Lifetime
from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Role
from pdd.core.units import Seconds
from pdd.core.view import Site


class KnownWorker(Protocol):
    """What never changes about a worker. Several workers may share a node."""

    @property
    def name(self) -> WorkerId: ...
    @property
    def role(self) -> Role: ...
    @property
    def site(self) -> Site: ...
    @property
    def max_batch(self) -> int:
        """How many generations run at once; its load is measured by this."""
        ...


WorkerT = TypeVar("WorkerT", bound=KnownWorker)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Seat(Generic[WorkerT]):
    """A request's place at a worker, for one lifetime of its process. Give it back with ``Workers.release``."""

    worker: WorkerT
    lifetime: Lifetime
    taken_at: Seconds
    num_missing: int
    """Blocks that this request lacked at the worker's node when the seat was taken."""
    num_blocks: int
    """Blocks for which the node must have room: prompt and output budget."""
    is_trial: bool

    @property
    def down(self) -> bool:
        """The process was declared down, or another one has taken its place."""
        return self.lifetime.ended


@dataclass(slots=True)
class NodeState:
    """What changes about a KV node. ``num_promised``: blocks for which the seats at its workers need room.

    ``why_not``: it answers, but disagrees with the deployment, so that nothing can be done with it.
    """

    node: NodeId
    attention: Attention
    returns: int = 0
    num_promised: int = 0
    why_not: str | None = None


@dataclass(slots=True)
class WorkerState(Generic[WorkerT]):
    """What changes about a worker. ``suspect``: something broke off there, and no check was answered since.

    ``num_missing`` is the sum over its seats.
    """

    worker: WorkerT
    node: NodeState
    attention: Attention
    breaker: Breaker
    lifetime: Lifetime | None = None
    suspect: bool = False
    why_down: str = "not asked yet"
    last_instance: str | None = None
    restarts: int = 0
    seats: dict[Seat[WorkerT], None] = field(default_factory=dict["Seat[WorkerT]", None])
    num_missing: int = 0
    num_decoding: int = 0
    """Generations that have sent something and are not over."""
    last_prefill_at: Seconds = Seconds(0.0)

    @property
    def up(self) -> bool:
        """Requests may be sent there."""
        return self.lifetime is not None and not self.suspect

    def is_late(self, now: Seconds) -> bool:
        """Its engine or its node is late with an answer: what is sent there may get nowhere."""
        silent = self.attention.is_late(now) and not (self.lifetime is not None and self.lifetime.heard)
        return silent or self.node.attention.is_late(now)

    def status(self, now: Seconds) -> WorkerStatus:
        return WorkerStatus(
            worker=self.worker.name,
            role=self.worker.role,
            up=self.up,
            running=len(self.seats),
            max_batch=self.worker.max_batch,
            restarts=self.restarts,
            breaker=self.breaker.state(now),
            why_down=None if self.up else self.why_down,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """How a worker is, for health endpoints and metrics. ``running``: seats taken, whether or not they
    decode just now.
    """

    worker: WorkerId
    role: Role
    up: bool
    running: int
    restarts: int
    max_batch: int = 16
    breaker: BreakerState = BreakerState.CLOSED
    why_down: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUp:
    """A process answers where none did, or another one did, whose lifetime has ``ended``: its listeners have to be
    told.
    """

    restarts: int
    ended: Lifetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNotUp:
    """A worker that is down stays so, for another reason than was known."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDown:
    """A worker was up, and is not: its lifetime has ``ended``, and its listeners have to be told."""

    why: str
    ended: Lifetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSuspect:
    """A generation broke off through the worker's fault."""

    breaker: BreakerState


Change = WorkerUp | WorkerNotUp | WorkerDown | WorkerSuspect
