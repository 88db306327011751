"""What policies decide by: frozen records of links, workers, roles and one request, as they are believed to be.

``belief`` and the driver make them, ``policy`` reads them. They hold values only, and nothing in them changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Role, Route, Steering
from pdd.core.topology import PolicyTable
from pdd.core.units import Bytes, BytesPerSecond, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A KV node and the cluster that it stands in: one end of a link."""

    node: NodeId
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """A link's ``rate`` (None: nothing is known) and what everybody together still has to send over it.

    ``measured_rate`` leaves out that nothing has arrived for a while: patience that grew with the wait would never end.
    ``backlog`` is the normal class's, owed by ``num_orders`` orders; what is sent in the background
    (``background_backlog``) delays nobody.
    """

    rate: BytesPerSecond | None
    measured_rate: BytesPerSecond | None
    backlog: Bytes
    num_orders: int
    background_backlog: Bytes = Bytes(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceView:
    """How fast a role's workers are. A unit of work is a block for prefill, a token for decoders. None: not measured
    yet.

    ``unit_s`` is a unit's mean time in the crowds that there were, ``alone_s`` its time with nobody beside, ``crowd_s``
    how much longer it takes for each that runs beside. ``typical_work`` is the work of one request.
    """

    unit_s: Seconds | None = None
    alone_s: Seconds | None = None
    crowd_s: Seconds | None = None
    typical_work: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleView:
    """All workers of a role that are up: how many generations they can run at once, and how many requests sit there."""

    capacity: int
    num_seats: int
    pace: PaceView

    @property
    def up(self) -> bool:
        """Whether one of them is."""
        return self.capacity > 0

    @property
    def load(self) -> float:
        """Seats taken per generation that can run at once; above 1, some wait. 1 if no worker is up."""
        return self.num_seats / self.capacity if self.capacity else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker that is up.

    ``num_missing`` blocks are missing at its node for those that sit there. ``free_blocks`` is what its node has room
    for (None: its node is away). ``slowness`` is its time over its peers' time. ``late``: its engine or its node has
    not answered its check yet. ``trusted``: its circuit breaker lets one more request through.
    """

    name: WorkerId
    num_seats: int
    max_batch: int
    num_missing: int
    free_blocks: int | None
    slowness: float
    late: bool
    trusted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateView:
    """A worker that a request may be sent to.

    ``num_missing`` blocks of its prompt are missing at the worker's node, and would come over ``link`` (None: none
    would, or it is not known from where). ``lost_here``: this very request lost a generation there.
    """

    worker: WorkerView
    num_missing: int
    link: LinkView | None
    lost_here: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementView:
    """Who could serve a request in one role. ``candidates`` is not empty.

    A decoder's node must have room for ``num_blocks``. ``home`` is the worker that served the conversation before.
    """

    role: Role
    candidates: tuple[CandidateView, ...]
    pace: PaceView
    num_blocks: int
    block_bytes: Bytes
    home: WorkerId | None
    settings: PolicyTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request and what surrounds it, at the moment of a choice.

    Attributes:
        num_blocks: full blocks of the prompt, each of ``block_bytes``.
        max_tokens: what the answer may have.
        num_missing: of them at main decode's node; None while it has not said so.
        hit_rate: the part of the prompt that prefill's node held.
        link: from the prompt's node to main decode's, with this request's bytes in its backlog; None if it is not known
            which one.
        num_others: orders of others on that link.
        idle: how long nothing of this request has arrived at main decode's node.
        has_relay_seat: it takes a seat at relay decode already.
        relay_refused: relay decode's node has no room for it.
        route: what was chosen last.
        keeps_relay: by the rule, its relay goes on to the end.
        filtered_last_turn: the conversation's last turn ended at relay decode.
        likely_tokens: what is still to come of the answer, on the safe side.
        may_filter: the share of filtered requests allows one more.
    """

    steering: Steering
    settings: PolicyTable
    roles: Mapping[Role, RoleView]
    link: LinkView | None
    block_bytes: Bytes
    num_blocks: int
    num_missing: int | None
    max_tokens: int
    likely_tokens: int
    hit_rate: float = 0.0
    num_others: int = 0
    idle: Seconds = Seconds(0.0)
    has_relay_seat: bool = False
    relay_refused: bool = False
    route: Route | None = None
    keeps_relay: bool = False
    filtered_last_turn: bool = False
    may_filter: bool = False

    @property
    def relay_available(self) -> bool:
        """A worker that could relay is up, and its node has not refused this request."""
        return self.roles[Role.RELAY_DECODE].up and not self.relay_refused

    @property
    def main_available(self) -> bool:
        return self.roles[Role.MAIN_DECODE].up

    @property
    def relay_load(self) -> float:
        """Relay decode's load by other requests: a seat that this one already has costs nobody anything more."""
        relay = self.roles[Role.RELAY_DECODE]
        own = 1 / relay.capacity if self.has_relay_seat and relay.capacity else 0.0
        return relay.load - own
