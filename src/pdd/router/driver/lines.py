"""What is known about the lines between clusters: how fast they are, and how much they still owe.

Senders publish an acknowledged rate and a backlog for each peer; several senders share one line, so both are summed. A
rate tells how fast the *line* is only if the line was the limit: while there was little to send it tells how little that
was. So a measurement counts once its sender has had a queue for a while; until then the line's nominal rate does.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdd.core.clock import Clock
from pdd.core.ids import NodeId
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.kvnode.base import ReplicationProgress
from pdd.router.driver.pool import Worker
from pdd.router.driver.settings import NominalRates

SATURATED_AFTER = Seconds(2.0)
"""Rates are measured over about so long; a queue must have stood for all of it."""
QUEUE_WORTH = Seconds(0.25)
"""A backlog of less than this at the measured rate is no queue."""
STALE_AFTER = Seconds(5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A line's ``rate`` (None: nothing is known) and what everybody together still has to send over it."""

    rate: BytesPerSecond | None
    backlog: Bytes


@dataclass(slots=True)
class _Sender:
    clusters: frozenset[str]
    at: Seconds
    rate: BytesPerSecond | None
    backlog: Bytes
    saturated_since: Seconds | None


class LineBook:
    """One per router; every transfer reports to it."""

    def __init__(self, nominal: NominalRates, *, local_rate: BytesPerSecond, clock: Clock) -> None:
        self._nominal = nominal
        self._local_rate = local_rate
        self._clock = clock
        self._senders: dict[tuple[NodeId, NodeId], _Sender] = {}
        self._moved_at: dict[tuple[NodeId, NodeId], Seconds] = {}

    def record(self, source: Worker, target: Worker, progress: ReplicationProgress) -> None:
        """Takes what ``source``'s node says about its peer, ``target``'s node."""
        now = self._clock.now()
        key = (source.node.node, target.node.node)
        before = self._senders.get(key)
        queued = progress.rate is not None and progress.backlog >= progress.rate * QUEUE_WORTH
        since = before.saturated_since if before is not None and before.saturated_since is not None else now
        clusters = frozenset((source.cluster, target.cluster))
        self._senders[key] = _Sender(clusters, now, progress.rate, progress.backlog, since if queued else None)

    def note_movement(self, source: Worker, target: Worker) -> None:
        """A block of some transfer between the two has arrived."""
        self._moved_at[source.node.node, target.node.node] = self._clock.now()

    def moved_at(self, source: Worker, target: Worker) -> Seconds:
        """When the last block arrived, whosever it was; before the first, the beginning of time."""
        return self._moved_at.get((source.node.node, target.node.node), Seconds(0.0))

    def forecast(self, source: Worker, target: Worker) -> Forecast:
        """What a transfer between the two has to expect now."""
        clusters = frozenset((source.cluster, target.cluster))
        now = self._clock.now()
        senders = [s for s in self._senders.values() if s.clusters == clusters and now - s.at <= STALE_AFTER]
        measured = sum(s.rate for s in senders if s.rate is not None)
        saturated = any(s.saturated_since is not None and now - s.saturated_since >= SATURATED_AFTER for s in senders)
        nominal = self._nominal_rate(clusters)
        rate = BytesPerSecond(measured) if measured and (saturated or nominal is None) else nominal
        return Forecast(rate=rate, backlog=Bytes(sum(s.backlog for s in senders)))

    def _nominal_rate(self, clusters: frozenset[str]) -> BytesPerSecond | None:
        return self._nominal.get(clusters, self._local_rate if len(clusters) == 1 else None)
