"""The phases of one delivery of KV, what is awaited in them, and how its order stands: the state of
``protocol.delivery``.

What only makes sense in one phase is in that phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar

from pdd.core.errors import PddError
from pdd.core.ids import OrderId
from pdd.core.units import Seconds
from pdd.protocol.delivery_messages import DeliveryState


class Asking(Enum):
    """What is waited for while the target has not said that it has capacity, or has not said it again."""

    TURN = auto()
    """Whether it may be asked."""
    BEHIND = auto()
    """Others in its queue."""
    FIRST = auto()
    """Something that is released there, or the time to ask again."""
    ANSWER = auto()
    """The first report of the watch."""
    RETURN = auto()
    """It was away."""


@dataclass(frozen=True, slots=True)
class Open:
    """The watch has reported."""

    num_ready: int


@dataclass(slots=True, kw_only=True)
class Seeking:
    """The delivery is under way: it seeks capacity, or has it."""

    target: Asking | Open


@dataclass(slots=True, kw_only=True)
class New:
    """It has not begun."""

    state: ClassVar[DeliveryState] = DeliveryState.PLACED


@dataclass(slots=True, kw_only=True)
class Placed(Seeking):
    """The target has not answered yet."""

    state: ClassVar[DeliveryState] = DeliveryState.PLACED


@dataclass(slots=True, kw_only=True)
class Refused(Seeking):
    """The target had no capacity, or others wait for it already. No order stands."""

    since: Seconds
    state: ClassVar[DeliveryState] = DeliveryState.REFUSED


@dataclass(slots=True, kw_only=True)
class Moving(Seeking):
    """The target had capacity when it answered last."""

    state: ClassVar[DeliveryState] = DeliveryState.MOVING


@dataclass(slots=True, kw_only=True)
class Ready:
    """The target holds the goal for as long as the watch is open."""

    state: ClassVar[DeliveryState] = DeliveryState.READY


@dataclass(slots=True, kw_only=True)
class Closing:
    """Nobody wants it any more, or it has failed. ``state``: what had become of it."""

    state: DeliveryState


class Acknowledging(Closing):
    """What was sent is told with the last acknowledgement, which comes after the block: the order may end by itself."""

    __slots__ = ()


class Stopping(Closing):
    """Orders are told to end, and the watch stays open until they have."""

    __slots__ = ()


class Releasing(Closing):
    """Nothing is sent any more, and the watch is told to close."""

    __slots__ = ()


class Ended(Closing):
    """Nothing is held any more."""

    __slots__ = ()


Phase = New | Placed | Refused | Moving | Ready | Acknowledging | Stopping | Releasing | Ended


class NoOrder(Enum):
    """Why none stands."""

    NOTHING_TO_SEND = auto()
    """Not yet, not now, or not at all."""
    ALL_SENT = auto()
    """Every block was at the target when the order was done."""
    PAUSE = auto()
    """The last one was lost; the source is asked in a moment."""
    CHECK = auto()
    """It is being asked."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The order stands at the source."""

    order: OrderId


@dataclass(frozen=True, slots=True)
class Lost:
    """The source is being told that the order is over."""

    order: OrderId
    error: PddError
