"""What is known about the links between clusters: how fast they are, and how much they still owe.

Each direction is a link of its own. Senders publish an acknowledged rate and a backlog for each peer; several senders
share one link, so both are summed. A rate tells how fast the *link* is only if the link was the limit: while there was
little to send it tells how little that was. So a measurement is believed once its sender has had a queue for a while.
Afterwards the belief drifts back to the link's declared rate, unless more is seen to arrive. While nothing arrives,
each second makes the link slower than said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdd.core.ids import NodeId, OrderId
from pdd.core.replication import ReplicationProgress
from pdd.core.request import SendClass
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.core.view import LinkView, Site
from pdd.policy.cost import QUIET_AFTER
from pdd.protocol.rate import RATE_WINDOW

SATURATED_AFTER = RATE_WINDOW
"""A queue must have stood for all of it."""
QUEUE_WORTH = Seconds(0.25)
"""A backlog of less than this at the measured rate is no queue."""
HALF_WAY_AFTER = Seconds(30.0)
"""After so long a measurement without successors is half forgotten: a hundredth of the nominal rate is a tenth by then.
"""

DeclaredRates = Mapping[tuple[str, str], BytesPerSecond]
"""The rate of each link, by the cluster that sends and the one that receives."""

_Pair = tuple[NodeId, NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReading:
    """What is believed of the link from one cluster to another."""

    source: str
    target: str
    rate: BytesPerSecond | None
    backlog: Mapping[SendClass, Bytes]


@dataclass(frozen=True, slots=True)
class _Standing:
    """One order. ``due``: all that it lacks is at the source and has room at the target, so only the link is waited
    for; one in the background waits for the link alone only if its sender owes nothing else.

    ``open``: it is of the normal class and something of it has yet to arrive. ``since``: its first report.
    """

    num_acknowledged: int
    due: bool
    open: bool
    since: Seconds | None


_NOTHING_YET = _Standing(0, due=False, open=False, since=None)


@dataclass(slots=True)
class _Sender:
    """One node's connection to another, as long as orders stand on it: without any its reports say nothing
    about now.
    """

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
        """What the link has carried for a young order alone: it is at least so fast."""
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
class _Link:
    senders: dict[_Pair, _Sender] = field(default_factory=dict[_Pair, _Sender])
    belief: tuple[BytesPerSecond, Seconds] | None = None
    """What was measured last, and when."""
    quiet_since: Seconds | None = None
    """Something is due, and nothing has arrived since."""

    @property
    def measured(self) -> BytesPerSecond | None:
        return BytesPerSecond(sum(s.rate for s in self.senders.values() if s.rate is not None)) or None

    @property
    def backlog(self) -> Bytes:
        """Of the normal class."""
        return Bytes(sum(sender.backlog for sender in self.senders.values()))

    @property
    def background_backlog(self) -> Bytes:
        return Bytes(sum(sender.background_backlog for sender in self.senders.values()))

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


class Links:
    """One per router; every transfer reports to it."""

    def __init__(self, declared: DeclaredRates, *, local_rate: BytesPerSecond, block_bytes: Bytes) -> None:
        self._declared = declared
        self._local_rate = local_rate
        self._block_bytes = block_bytes
        self._links: dict[tuple[str, str], _Link] = {}
        self._moved_at: dict[_Pair, Seconds] = {}

    def record(
        self,
        source: Site,
        target: Site,
        progress: ReplicationProgress,
        *,
        now: Seconds,
        all_there: bool,
        send_class: SendClass = SendClass.NORMAL,
    ) -> None:
        """Takes what ``source``'s node says about its peer, ``target``'s node; until ``ended`` the order counts.

        ``all_there``: the source has all blocks of the order, and the target room for them. Tell again when that
        changes.
        """
        pair = (source.node, target.node)
        link = self._links.setdefault(_name(source, target), _Link())
        quiet, num_due = link.quiet(now), link.num_due
        sender = link.senders.setdefault(pair, _Sender())
        num_arrived = sender.take(
            progress, send_class=send_class, all_there=all_there, block_bytes=self._block_bytes, now=now
        )
        link.listen(now, arrived=num_arrived > 0)
        if num_arrived > 0:
            self._moved_at[pair] = now
            declared = self._declared_rate(source, target)
            believed = self._believed(link, declared, now)
            if believed is not None and declared is not None:
                believed = BytesPerSecond(max(believed, min(declared, sender.seen(progress, self._block_bytes, now))))
            bound = self._bound(num_due * num_arrived, quiet)
            link.belief = None if believed is None else (_least(believed, bound), now)

    def ended(self, source: Site, target: Site, order: OrderId, now: Seconds) -> None:
        """The order stands no more: its backlog is nobody's, its silence says nothing."""
        link, pair = self._links.get(_name(source, target)), (source.node, target.node)
        if link is None or pair not in link.senders:
            return
        sender = link.senders[pair]
        if order in sender.orders:
            sender.end(order)
        if not sender.orders:
            del link.senders[pair]
        link.listen(now, arrived=False)

    def moved_at(self, source: Site, target: Site) -> Seconds:
        """When the last block arrived, whosever it was; before the first, the beginning of time."""
        return self._moved_at.get((source.node, target.node), Seconds(0.0))

    def view(self, source: Site, target: Site, now: Seconds) -> LinkView:
        """What a transfer between the two has to expect now."""
        link = self._links.get(_name(source, target), _Link())
        measured = self._believed(link, self._declared_rate(source, target), now)
        bound = self._bound(link.num_due, link.quiet(now))
        return LinkView(
            rate=None if measured is None else _least(measured, bound),
            measured_rate=measured,
            backlog=link.backlog,
            num_orders=sum(sender.num_open for sender in link.senders.values()),
            background_backlog=link.background_backlog,
        )

    def readings(self, now: Seconds) -> tuple[LinkReading, ...]:
        """What is known of each link between two clusters, declared or seen, in order of their names."""
        names = sorted(name for name in {*self._declared, *self._links} if name[0] != name[1])
        return tuple(self._reading(source, target, now) for source, target in names)

    def _reading(self, source: str, target: str, now: Seconds) -> LinkReading:
        link = self._links.get((source, target), _Link())
        return LinkReading(
            source=source,
            target=target,
            rate=self._believed(link, self._declared.get((source, target)), now),
            backlog={SendClass.NORMAL: link.backlog, SendClass.BACKGROUND: link.background_backlog},
        )

    def _believed(self, link: _Link, declared: BytesPerSecond | None, now: Seconds) -> BytesPerSecond | None:
        measured = link.measured
        if measured is not None and (declared is None or link.is_saturated(now)):
            return measured
        if link.belief is None or declared is None:
            return declared if link.belief is None else link.belief[0]
        rate, at = link.belief
        drifted = declared * (rate / declared) ** (0.5 ** ((now - at) / HALF_WAY_AFTER))
        # Without a queue what arrives is less than the link could carry, never more.
        return BytesPerSecond(max(drifted, min(measured or 0.0, declared)))

    def _bound(self, num_blocks: int, quiet: Seconds) -> BytesPerSecond | None:
        """What the rate was at most if no more than ``num_blocks`` came across in ``quiet``, with more to send all
        along.

        Each sender with something due has less than one block on its way, so that many belong to a silence.
        """
        return None if quiet < QUIET_AFTER else BytesPerSecond(num_blocks * self._block_bytes / quiet)

    def _declared_rate(self, source: Site, target: Site) -> BytesPerSecond | None:
        name = _name(source, target)
        return self._declared.get(name, self._local_rate if source.cluster == target.cluster else None)


def _least(rate: BytesPerSecond, bound: BytesPerSecond | None) -> BytesPerSecond:
    return rate if bound is None else min(rate, bound)


def _name(source: Site, target: Site) -> tuple[str, str]:
    return (source.cluster, target.cluster)
