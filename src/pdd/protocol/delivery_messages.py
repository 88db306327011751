"""What a delivery is told, and what it commands: the vocabulary of ``protocol.delivery``.

Every event says when it happened. Watches and orders have names, unique within the delivery; events say which they are
of.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from pdd.core.blocks import BlockHash
from pdd.core.errors import PddError
from pdd.core.ids import NodeId, NodeInstance, OrderId, WatchId
from pdd.core.replication import Readiness, ReplicationOrder, ReplicationProgress, Watch
from pdd.core.request import SendClass
from pdd.core.units import Seconds
from pdd.core.view import LinkView
from pdd.protocol.capacity_queue import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySpec:
    """What is delivered. ``hashes`` is not empty; ``reserve_blocks`` is what the target must have capacity for.

    ``send_class`` is the one that it begins in. ``goal``: it is ready when so many blocks, the first ones, are (None:
    all).
    """

    name: str
    source: NodeId
    target: NodeId
    hashes: tuple[BlockHash, ...]
    reserve_blocks: int
    send_class: SendClass = SendClass.NORMAL
    goal: int | None = None

    @property
    def is_local(self) -> bool:
        """Source and target share a node: there is nothing to send."""
        return self.source == self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLimits:
    """How patient a delivery is with each of those that it depends on, and how often it tries again."""

    node_patience: Seconds
    """How long a node may be away, or without any progress."""
    source_patience: Seconds
    """How long the source may have none of the missing blocks, or be silent, when all should be there."""
    link_patience: Seconds
    """How long a link that has something to send may deliver nothing at all."""
    max_queue_patience: Seconds
    """How long a delivery may be passed over while others are served, however long the queue seems to be."""
    spare_patience: Seconds
    """How long one that only gets what links have to spare may get nothing."""
    capacity_patience: Seconds
    """How long capacity is waited for once every block is computed; also how long a last acknowledgement is."""
    max_queue: Seconds
    """How long capacity is waited for before that."""
    node_retry: Seconds
    retry_after: Seconds
    """What is told to those whose delivery found no capacity."""


class DeliveryState(Enum):
    """What has become of a delivery, for those that it is made for."""

    PLACED = auto()
    """The target has not answered yet."""
    REFUSED = auto()
    """The target has no capacity now, and is asked again."""
    MOVING = auto()
    READY = auto()
    FAILED = auto()


class Timer(StrEnum):
    """What a delivery ever waits for by the clock."""

    TURN = "turn"
    """It waits in the target's queue: the first asks again, any other looks how long it has waited."""
    TARGET = "target"
    """The target was away; it is asked again."""
    SOURCE = "source"
    """The order was lost; the source is asked whether it is still the same."""
    ACKNOWLEDGEMENT = "acknowledgement"
    """The last acknowledgement has been waited for long enough."""
    STANDSTILL = "standstill"
    """It is time to look whether anything moves. ``StandstillDue`` is delivered instead of ``TimerFired``."""


# Events --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Happened:
    at: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun(_Happened):
    """The delivery is wanted. The first event; ``turn`` says whether others wait for the target already."""

    turn: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTold(_Happened):
    """Answers ``AskTurn``, at once."""

    turn: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnChanged(_Happened):
    """The first in the queue, which it is now, may ask: something was released at the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReported(_Happened):
    """The target has capacity for the delivery, and holds so many of its blocks."""

    readiness: Readiness


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFailed(_Happened):
    """The watch was refused or is lost: it holds nothing any more."""

    watch: WatchId
    error: PddError


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEnded(_Happened):
    """The watch is closed: it holds nothing any more."""

    watch: WatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderBegun(_Happened):
    """The order is on its way to the source, of which ``instance`` is known (None: it did not answer lately)."""

    instance: NodeInstance | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderProgressed(_Happened):
    """The source said where the order stands; one that is ``done`` stands no more."""

    progress: ReplicationProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFailed(_Happened):
    """The order is lost. The source is being told; ``OrderEnded`` follows."""

    order: OrderId
    error: PddError


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderEnded(_Happened):
    """The source has heard that the order is over, or can't hear it: nothing is sent for it any more."""

    order: OrderId


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChecked(_Happened):
    """Answers ``CheckSource``. ``instance`` None: the source did not answer."""

    instance: NodeInstance | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(_Happened):
    """A timer set by ``SetTimer`` went off."""

    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class StandstillDue(_Happened):
    """The timer STANDSTILL went off; with it comes what is known of the link and the source.

    ``link_moved_at``: when the last block went over this link, whosever it was. ``source_is_late``: it owes an answer.
    """

    link: LinkView
    link_moved_at: Seconds
    source_is_late: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillDone(_Happened):
    """All blocks should be at the source by now: from here on a standstill counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demoted(_Happened):
    """Nobody waits for it any more: from now on it gets what the link has to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached(_Happened):
    """Its request is over and the delivery goes on; it ends itself as soon as it is settled.

    Nobody is told any more.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(_Happened):
    """It is to end and to hold nothing any more. Nobody is told any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed(_Happened):
    """Its commands can't be carried out any more, and all that it held is gone."""


Event = (
    Begun
    | TurnTold
    | TurnChanged
    | WatchReported
    | WatchFailed
    | WatchEnded
    | OrderBegun
    | OrderProgressed
    | OrderFailed
    | OrderEnded
    | SourceChecked
    | TimerFired
    | StandstillDue
    | PrefillDone
    | Demoted
    | Detached
    | Released
    | Crashed
)

# Commands ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AskTurn:
    """Look whether the target may be asked, behind those that wait already; answer with ``TurnTold`` at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinQueue:
    """The target had no capacity: stand in its queue, unless it stands there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveQueue:
    """The target has capacity, or can't be asked now: the next one may ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeCapacity:
    """Somebody may wait for this delivery: something that nobody waits for shall leave the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWatch:
    """``WatchReported`` or ``WatchFailed`` follows."""

    watch: Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseWatch:
    """Release what the watch holds; ``WatchEnded`` or ``WatchFailed`` follows."""

    watch: WatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOrder:
    """``OrderBegun`` follows as soon as it goes out, and ``OrderEnded`` in any case."""

    order: ReplicationOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOrder:
    """Tell the source to send nothing more; ``OrderEnded`` follows."""

    order: OrderId


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclassify:
    """The order goes on in another class."""

    order: OrderId
    send_class: SendClass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSource:
    """Ask the source which lifetime this is; ``SourceChecked`` follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Deliver ``TimerFired(timer)`` after ``delay``; replaces the same timer."""

    timer: Timer
    delay: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordProgress:
    """What the order's source said last. ``all_there``: only the link is waited for now."""

    progress: ReplicationProgress
    all_there: bool
    send_class: SendClass


@dataclass(frozen=True, slots=True, kw_only=True)
class TellChange:
    """Whoever it is made for: ``state`` is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TellInformed:
    """Whoever it is made for: the target has said what it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The last command: nothing is held any more, and its position in the target's queue is free."""


Command = (
    AskTurn
    | JoinQueue
    | LeaveQueue
    | FreeCapacity
    | OpenWatch
    | CloseWatch
    | PlaceOrder
    | CancelOrder
    | Reclassify
    | CheckSource
    | SetTimer
    | RecordProgress
    | TellChange
    | TellInformed
    | End
)
