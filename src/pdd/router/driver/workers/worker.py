"""One worker as the router knows it: its process' lifetimes, who sits at it, and whether it can be trusted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from pdd.core.ids import WorkerId
from pdd.core.request import Role
from pdd.core.topology import HealthTable
from pdd.core.units import Seconds
from pdd.core.view import Site
from pdd.engine.base import EngineClient
from pdd.kvnode.base import NodeClient
from pdd.policy.health import Breaker, BreakerState, Pulse

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

    @property
    def site(self) -> Site:
        return Site(node=self.node.node, cluster=self.cluster)


class Lifetime:
    """One process of a worker, from its first answered check until it is declared down or another one answers."""

    __slots__ = ("_listeners", "ended", "heard", "instance")

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.ended = False
        self.heard = False
        """Something came from it since the last check began: it lives, however late its answer is."""
        self._listeners: dict[object, Callable[[], None]] = {}

    def on_end(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls ``listener`` when it ends, at once if it has ended. Returns what takes that back. Idempotent."""
        if self.ended:
            listener()
            return lambda: None
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    def end(self) -> None:
        """It is gone, or counts as gone. Every listener is told, whatever another one raises, which is logged. Idempotent."""
        self.ended = True
        while self._listeners:
            listener = self._listeners.pop(next(iter(self._listeners)))
            try:
                listener()
            except Exception:
                # Who ends it is a health check: it can do nothing about it, and must go on.
                _logger.exception("end_not_told instance=%s", self.instance)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Seat:
    """A request's place at a worker, for one lifetime of its process. Give it back with ``Pool.release``."""

    worker: Worker
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


LATE_AFTER = Seconds(1.0)
"""Long before an unanswered check counts as lost, it is a reason to send a new request elsewhere."""


@dataclass(slots=True)
class Attention:
    """Whether somebody answers checks, and how late it is with the present one."""

    pulse: Pulse
    asked_at: Seconds | None = None
    """Of the first check since the last answer."""

    def asked(self, now: Seconds) -> None:
        self.asked_at = now if self.asked_at is None else self.asked_at

    def answered(self) -> None:
        self.asked_at = None
        self.pulse.answered()

    def heard(self) -> None:
        """No answer, but a sign of life."""
        self.asked_at = None

    def is_late(self, now: Seconds) -> bool:
        return self.asked_at is not None and now - self.asked_at >= LATE_AFTER


@dataclass(slots=True)
class NodeState:
    """What changes about a KV node. ``num_promised``: blocks for which the seats at its workers need room.

    ``why_not``: it answers, but disagrees with the deployment, so that nothing can be done with it.
    """

    node: NodeClient
    attention: Attention
    returns: int = 0
    num_promised: int = 0
    why_not: str | None = None


@dataclass(slots=True)
class WorkerState:
    """What changes about a worker. ``suspect``: something broke off there, and no check was answered since.

    ``num_missing`` is the sum over its seats.
    """

    worker: Worker
    node: NodeState
    attention: Attention
    breaker: Breaker
    lifetime: Lifetime | None = None
    suspect: bool = False
    why_down: str = "not asked yet"
    last_instance: str | None = None
    restarts: int = 0
    seats: dict[Seat, None] = field(default_factory=dict[Seat, None])
    num_missing: int = 0
    num_decoding: int = 0
    """Generations that have sent something and are not over."""
    last_prefill_at: Seconds = Seconds(0.0)
    check_now: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, worker: Worker, node: NodeState, rule: HealthTable) -> WorkerState:
        return cls(worker, node, Attention(Pulse(rule)), Breaker(rule))

    @property
    def up(self) -> bool:
        """Requests may be sent there."""
        return self.lifetime is not None and not self.suspect

    def is_late(self, now: Seconds) -> bool:
        """Its engine or its node is late with an answer: what is sent there may get nowhere."""
        silent = self.attention.is_late(now) and not (self.lifetime is not None and self.lifetime.heard)
        return silent or self.node.attention.is_late(now)

    def take(self, now: Seconds, *, num_missing: int, num_blocks: int) -> Seat:
        """A new seat. Call only while it is up."""
        assert self.lifetime is not None
        seat = Seat(
            worker=self.worker,
            lifetime=self.lifetime,
            taken_at=now,
            num_missing=num_missing,
            num_blocks=num_blocks,
            is_trial=self.breaker.begin(now),
        )
        self.seats[seat] = None
        self.num_missing += num_missing
        self.node.num_promised += num_blocks
        return seat

    def release(self, seat: Seat) -> None:
        if seat in self.seats:
            del self.seats[seat]
            self.num_missing -= seat.num_missing
            self.node.num_promised -= seat.num_blocks
            if seat.is_trial:
                self.breaker.end_trial()

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
    """How a worker is, for health endpoints and metrics. ``running``: seats taken, whether or not they decode just now."""

    worker: WorkerId
    role: Role
    up: bool
    running: int
    restarts: int
    max_batch: int = 16
    breaker: BreakerState = BreakerState.CLOSED
    why_down: str | None = None
