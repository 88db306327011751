"""What is known about the lines between clusters: how fast they are, and how much they still owe.

Senders publish an acknowledged rate and a backlog for each peer; several senders share one line, so both are summed. A
rate tells how fast the *line* is only if the line was the limit: while there was little to send it tells how little that
was. So a measurement is believed once its sender has had a queue for a while. Afterwards the belief drifts back to the
line's nominal rate, unless more is seen to arrive. While nothing arrives, each second makes the line slower than said.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd.core.clock import Clock
from pdd.core.ids import NodeId, OrderId
from pdd.core.request import SendClass
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.kvnode.base import ReplicationProgress
from pdd.router.driver.settings import NominalRates
from pdd.router.driver.workers.worker import Worker
from pdd.telemetry.figures import LineFigures

SATURATED_AFTER = Seconds(2.0)
"""Rates are measured over about so long; a queue must have stood for all of it."""
QUEUE_WORTH = Seconds(0.25)
"""A backlog of less than this at the measured rate is no queue."""
HALF_WAY_AFTER = Seconds(30.0)
"""After so long a measurement without successors is half forgotten: a hundredth of the nominal rate is a tenth by then."""
QUIET_AFTER = Seconds(1.0)
"""So long without any block says something about the rate: well above a round trip and the time of a block."""

_Pair = tuple[NodeId, NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A line's ``rate`` (None: nothing is known) and what everybody together still has to send over it.

    ``measured_rate`` leaves out that nothing has arrived for a while: patience that grew with the wait would never end.
    ``backlog`` is the normal class's, owed by ``num_orders`` orders; what is sent in the background (``background_backlog``)
    delays nobody.
    """

    rate: BytesPerSecond | None
    measured_rate: BytesPerSecond | None
    backlog: Bytes
    num_orders: int
    background_backlog: Bytes = Bytes(0)


@dataclass(frozen=True, slots=True)
class _Standing:
    """One order. ``due``: all that it lacks is at the source and has room at the target, so only the line is waited for;
    one in the background waits for the line alone only if its sender owes nothing else.

    ``open``: it is of the normal class and something of it has yet to arrive. ``since``: its first report.
    """

    num_acknowledged: int
    due: bool
    open: bool
    since: Seconds | None


_NOTHING_YET = _Standing(0, due=False, open=False, since=None)


@dataclass(slots=True)
class _Sender:
    """One node's connection to another, as long as orders stand on it: without any its reports say nothing about now."""

    orders: dict[OrderId, _Standing] = field(default_factory=dict[OrderId, _Standing])
    rate: BytesPerSecond | None = None
    backlog: Bytes = Bytes(0)
    background_backlog: Bytes = Bytes(0)
    saturated_since: Seconds | None = None
    num_due: int = 0
    num_open: int = 0

    def take(
        self,
        progress: ReplicationProgress,
        *,
        send_class: SendClass,
        all_there: bool,
        block_bytes: Bytes,
        now: Seconds,
    ) -> int:
        """How many blocks have arrived."""
        left = 0 if progress.num_missing is None else progress.num_missing - progress.num_acknowledged
        waits, normal = left > 0, send_class is SendClass.NORMAL
        alone = progress.backlog <= left * block_bytes
        since = self.orders.get(progress.order, _NOTHING_YET).since
        standing = _Standing(
            progress.num_acknowledged,
            due=waits and all_there and (normal or alone),
            open=waits and normal,
            since=now if since is None else since,
        )
        before = self._replace(progress.order, standing)
        self.rate, self.backlog = progress.rate, progress.backlog
        self.background_backlog = progress.background_backlog
        queued = progress.rate is not None and progress.backlog >= progress.rate * QUEUE_WORTH
        self.saturated_since = (now if self.saturated_since is None else self.saturated_since) if queued else None
        return progress.num_acknowledged - before.num_acknowledged

    def seen(self, progress: ReplicationProgress, block_bytes: Bytes, now: Seconds) -> BytesPerSecond:
        """What the line has carried for a young order alone: it is at least so fast."""
        since = self.orders[progress.order].since
        if since is None or not 0 < now - since <= SATURATED_AFTER:
            return BytesPerSecond(0.0)
        return BytesPerSecond(min(progress.sent_bytes, progress.num_acknowledged * block_bytes) / (now - since))

    def end(self, order: OrderId) -> None:
        """It stands no more."""
        self._replace(order, _NOTHING_YET)
        del self.orders[order]

    def _replace(self, order: OrderId, standing: _Standing) -> _Standing:
        before = self.orders.get(order, _NOTHING_YET)
        self.orders[order] = standing
        self.num_due += standing.due - before.due
        self.num_open += standing.open - before.open
        return before


@dataclass(slots=True)
class _Line:
    senders: dict[_Pair, _Sender] = field(default_factory=dict[_Pair, _Sender])
    belief: tuple[BytesPerSecond, Seconds] | None = None
    """What was measured last, and when."""
    quiet_since: Seconds | None = None
    """Something is due, and nothing has arrived since."""

    @property
    def measured(self) -> BytesPerSecond | None:
        return BytesPerSecond(sum(s.rate for s in self.senders.values() if s.rate is not None)) or None

    @property
    def num_due(self) -> int:
        return sum(sender.num_due > 0 for sender in self.senders.values())

    def is_saturated(self, now: Seconds) -> bool:
        since = [s.saturated_since for s in self.senders.values() if s.saturated_since is not None]
        return any(now - begun >= SATURATED_AFTER for begun in since)

    def quiet(self, now: Seconds) -> Seconds:
        """For how long something has been due without anything arriving."""
        return Seconds(0.0 if self.quiet_since is None else now - self.quiet_since)

    def listen(self, now: Seconds, *, arrived: bool) -> None:
        """Begins to count the silence anew after an arrival, or when something becomes due."""
        if not self.num_due:
            self.quiet_since = None
        elif arrived or self.quiet_since is None:
            self.quiet_since = now


class LineBook:
    """One per router; every transfer reports to it."""

    def __init__(self, nominal: NominalRates, *, local_rate: BytesPerSecond, block_bytes: Bytes, clock: Clock) -> None:
        self._nominal = nominal
        self._local_rate = local_rate
        self._block_bytes = block_bytes
        self._clock = clock
        self._lines: dict[frozenset[str], _Line] = {}
        self._moved_at: dict[_Pair, Seconds] = {}

    def record(
        self,
        source: Worker,
        target: Worker,
        progress: ReplicationProgress,
        *,
        all_there: bool,
        send_class: SendClass = SendClass.NORMAL,
    ) -> None:
        """Takes what ``source``'s node says about its peer, ``target``'s node; until ``ended`` the order counts.

        ``all_there``: the source has all blocks of the order, and the target room for them. Tell again when that changes.
        """
        now, pair = self._clock.now(), (source.node.node, target.node.node)
        line = self._lines.setdefault(_clusters(source, target), _Line())
        quiet, num_due = line.quiet(now), line.num_due
        sender = line.senders.setdefault(pair, _Sender())
        num_arrived = sender.take(
            progress, send_class=send_class, all_there=all_there, block_bytes=self._block_bytes, now=now
        )
        line.listen(now, arrived=num_arrived > 0)
        if num_arrived > 0:
            self._moved_at[pair] = now
            nominal = self._nominal_rate(source, target)
            believed = self._believed(line, nominal)
            if believed is not None and nominal is not None:
                believed = BytesPerSecond(max(believed, min(nominal, sender.seen(progress, self._block_bytes, now))))
            bound = self._bound(num_due * num_arrived, quiet)
            line.belief = None if believed is None else (_least(believed, bound), now)

    def ended(self, source: Worker, target: Worker, order: OrderId) -> None:
        """The order stands no more: its backlog is nobody's, its silence says nothing."""
        line, pair = self._lines.get(_clusters(source, target)), (source.node.node, target.node.node)
        if line is None or pair not in line.senders:
            return
        sender = line.senders[pair]
        if order in sender.orders:
            sender.end(order)
        if not sender.orders:
            del line.senders[pair]
        line.listen(self._clock.now(), arrived=False)

    def moved_at(self, source: Worker, target: Worker) -> Seconds:
        """When the last block arrived, whosever it was; before the first, the beginning of time."""
        return self._moved_at.get((source.node.node, target.node.node), Seconds(0.0))

    def forecast(self, source: Worker, target: Worker) -> Forecast:
        """What a transfer between the two has to expect now."""
        line = self._lines.get(_clusters(source, target), _Line())
        measured = self._believed(line, self._nominal_rate(source, target))
        bound = self._bound(line.num_due, line.quiet(self._clock.now()))
        return Forecast(
            rate=None if measured is None else _least(measured, bound),
            measured_rate=measured,
            backlog=Bytes(sum(sender.backlog for sender in line.senders.values())),
            num_orders=sum(sender.num_open for sender in line.senders.values()),
            background_backlog=Bytes(sum(sender.background_backlog for sender in line.senders.values())),
        )

    def readings(self) -> tuple[LineFigures, ...]:
        """What is known of each line between two clusters, declared or seen, in order of their names."""
        pairs = sorted(tuple(sorted(pair)) for pair in {*self._nominal, *self._lines} if len(pair) == 2)
        return tuple(self._reading(one, other) for one, other in pairs)

    def _reading(self, one: str, other: str) -> LineFigures:
        clusters = frozenset((one, other))
        line = self._lines.get(clusters, _Line())
        senders = line.senders.values()
        return LineFigures(
            clusters=(one, other),
            rate=self._believed(line, self._nominal.get(clusters)),
            backlog={
                SendClass.NORMAL: Bytes(sum(sender.backlog for sender in senders)),
                SendClass.BACKGROUND: Bytes(sum(sender.background_backlog for sender in senders)),
            },
        )

    def _believed(self, line: _Line, nominal: BytesPerSecond | None) -> BytesPerSecond | None:
        now, measured = self._clock.now(), line.measured
        if measured is not None and (nominal is None or line.is_saturated(now)):
            return measured
        if line.belief is None or nominal is None:
            return nominal if line.belief is None else line.belief[0]
        rate, at = line.belief
        drifted = nominal * (rate / nominal) ** (0.5 ** ((now - at) / HALF_WAY_AFTER))
        # Without a queue what arrives is less than the line could carry, never more.
        return BytesPerSecond(max(drifted, min(measured or 0.0, nominal)))

    def _bound(self, num_blocks: int, quiet: Seconds) -> BytesPerSecond | None:
        """What the rate was at most if no more than ``num_blocks`` came across in ``quiet``, with more to send all along.

        Each sender with something due has less than one block on its way, so that many belong to a silence.
        """
        return None if quiet < QUIET_AFTER else BytesPerSecond(num_blocks * self._block_bytes / quiet)

    def _nominal_rate(self, source: Worker, target: Worker) -> BytesPerSecond | None:
        clusters = _clusters(source, target)
        return self._nominal.get(clusters, self._local_rate if len(clusters) == 1 else None)


def _least(rate: BytesPerSecond, bound: BytesPerSecond | None) -> BytesPerSecond:
    return rate if bound is None else min(rate, bound)


def _clusters(source: Worker, target: Worker) -> frozenset[str]:
    return frozenset((source.cluster, target.cluster))
