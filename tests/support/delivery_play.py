"""One delivery whose world is played by hand: a script says what happens, and looks at what is commanded."""

from __future__ import annotations

from typing import Any

from pdd.core.blocks import BlockHash
from pdd.core.errors import PddError
from pdd.core.ids import NodeId, NodeInstance, OrderId, WatchId
from pdd.core.replication import Readiness, ReplicationProgress
from pdd.core.request import SendClass
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.core.view import LinkView
from pdd.protocol import delivery_messages as dm
from pdd.protocol.capacity_queue import Turn

LIMITS = dm.DeliveryLimits(
    node_patience=Seconds(10.0),
    source_patience=Seconds(3.0),
    link_patience=Seconds(30.0),
    max_queue_patience=Seconds(300.0),
    spare_patience=Seconds(200.0),
    capacity_patience=Seconds(1.0),
    max_queue=Seconds(5.0),
    node_retry=Seconds(0.25),
    retry_after=Seconds(2.0),
)
HASHES = tuple(BlockHash(bytes([number]) * 32) for number in range(4))
IDLE_LINK = LinkView(rate=None, measured_rate=None, backlog=Bytes(0), num_orders=0)


def make_spec(**changes: Any) -> dm.DeliverySpec:
    fields: dict[str, Any] = {"name": "d", "source": NodeId("s"), "target": NodeId("t"), "hashes": HASHES}
    return dm.DeliverySpec(**{**fields, "reserve_blocks": 9, **changes})


class Play:
    """``m`` offers ``Delivery``. Methods say what happened at ``now``, and return what is commanded."""

    def __init__(self, m: Any, *, limits: dm.DeliveryLimits = LIMITS, **spec: Any) -> None:
        self.delivery = m.Delivery(make_spec(**spec), limits)
        self.now = 0.0

    def tell(self, event: type[Any], **fields: Any) -> list[dm.Command]:
        return self.delivery.receive(event(at=Seconds(self.now), **fields))

    def begin(self, turn: Turn = Turn.OPEN) -> list[dm.Command]:
        return self.tell(dm.Begun, turn=turn)

    def turn(self, turn: Turn) -> list[dm.Command]:
        return self.tell(dm.TurnTold, turn=turn)

    def report(self, watch: int, num_ready: int) -> list[dm.Command]:
        return self.tell(dm.WatchReported, readiness=Readiness(watch=WatchId(f"d.{watch}"), num_ready=num_ready))

    def watch_fails(self, watch: int, error: PddError) -> list[dm.Command]:
        return self.tell(dm.WatchFailed, watch=WatchId(f"d.{watch}"), error=error)

    def watch_ends(self, watch: int) -> list[dm.Command]:
        return self.tell(dm.WatchEnded, watch=WatchId(f"d.{watch}"))

    def order_begins(self, instance: str | None) -> list[dm.Command]:
        return self.tell(dm.OrderBegun, instance=None if instance is None else NodeInstance(instance))

    def progress(self, order: int, missing: int | None, acknowledged: int = 0, **fields: Any) -> list[dm.Command]:
        return self.tell(dm.OrderProgressed, progress=progress(order, missing, acknowledged, **fields))

    def order_fails(self, order: int, error: PddError) -> list[dm.Command]:
        """And the source has been told."""
        return [*self.tell(dm.OrderFailed, order=OrderId(f"d.{order}"), error=error), *self.order_ends(order)]

    def order_ends(self, order: int) -> list[dm.Command]:
        return self.tell(dm.OrderEnded, order=OrderId(f"d.{order}"))

    def fire(self, timer: dm.Timer, *, after: float = 0.0) -> list[dm.Command]:
        self.now += after
        return self.tell(dm.TimerFired, timer=timer)

    def look(
        self, *, after: float = 0.0, link: LinkView = IDLE_LINK, link_moved_at: float = 0.0, late: bool = False
    ) -> list[dm.Command]:
        self.now += after
        return self.tell(dm.StandstillDue, link=link, link_moved_at=Seconds(link_moved_at), source_is_late=late)


def progress(
    order: int, missing: int | None, acknowledged: int = 0, *, sent: int = 0, done: bool = False
) -> ReplicationProgress:
    return ReplicationProgress(
        order=OrderId(f"d.{order}"),
        num_missing=missing,
        num_acknowledged=acknowledged,
        sent_bytes=Bytes(sent),
        rate=None,
        backlog=Bytes(0),
        done=done,
    )


def owing(*, normal: float = 0, background: float = 0, rate: float | None = None) -> LinkView:
    """A link that has so much to send."""
    known = None if rate is None else BytesPerSecond(rate)
    return LinkView(
        rate=known,
        measured_rate=known,
        backlog=Bytes(int(normal)),
        num_orders=1,
        background_backlog=Bytes(int(background)),
    )


def names(commands: list[dm.Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


def timer(name: dm.Timer, delay: float) -> dm.SetTimer:
    return dm.SetTimer(timer=name, delay=Seconds(delay))


def record(of: ReplicationProgress, *, all_there: bool, send_class: SendClass = SendClass.NORMAL) -> dm.RecordProgress:
    return dm.RecordProgress(progress=of, all_there=all_there, send_class=send_class)
