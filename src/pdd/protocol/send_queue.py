"""Which of the blocks that a target lacks goes next, how many wait in each class, and how many are on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush

from pdd.core.blocks import BlockHash
from pdd.core.request import SendClass
from pdd.core.units import Bytes
from pdd.protocol.orders import OrderKey, Standing


class BlockState(Enum):
    """See ``protocol.transfer``."""

    UNOFFERED = "unoffered"
    OFFERED = "offered"
    LACKED = "lacked"
    ELSEWHERE = "elsewhere"
    IN_FLIGHT = "in flight"


@dataclass(slots=True)
class WantedBlock:
    """A block that orders want and that is not at the target."""

    present: bool
    state: BlockState = BlockState.UNOFFERED
    orders: dict[StandingOrder, int] = field(default_factory=dict["StandingOrder", int])
    """Who wants it, and where it stands in their sequence."""
    num_normal: int = 0
    """How many of these orders are of the normal class."""
    offer: int = 0
    offered_present: bool = False
    num_rejections: int = 0
    is_refused: bool = False
    is_kept: bool = False
    counted: SendClass | None = None
    """Which class's backlog it is part of."""

    def counts_as(self) -> SendClass | None:
        if self.state is BlockState.IN_FLIGHT or (self.state is BlockState.LACKED and self.present):
            return SendClass.NORMAL if self.num_normal else SendClass.BACKGROUND
        return None


@dataclass(slots=True, eq=False)
class StandingOrder:
    """An order that has not all that it wants."""

    key: OrderKey
    hashes: tuple[BlockHash, ...]
    send_class: SendClass
    num_pending: int
    """Blocks that are not at the target; those of them that are not ``unanswered`` are counted as missing."""
    unanswered: set[BlockHash] = field(default_factory=set[BlockHash])
    num_missing: int = 0
    num_acknowledged: int = 0
    sendable: list[tuple[int, BlockHash]] = field(default_factory=list[tuple[int, BlockHash]])
    """A heap that may name blocks that have gone since: ``next_block`` looks twice."""
    is_queued: bool = False
    sent_bytes: int = 0

    @property
    def is_normal(self) -> bool:
        return self.send_class is SendClass.NORMAL

    def standing(self) -> Standing:
        return Standing(
            num_missing=None if self.unanswered else self.num_missing,
            num_acknowledged=self.num_acknowledged,
            sent_bytes=Bytes(self.sent_bytes),
        )


class SendQueue:
    """Orders take turns, block by block, those of the background class only while no other has a block to send.

    Reads the ``blocks`` that its owner keeps: a block that is no more lacked, or gone from here, is passed over.
    """

    def __init__(self, blocks: Mapping[BlockHash, WantedBlock], *, block_bytes: Bytes, window_bytes: Bytes) -> None:
        self.background_window = Bytes(0)
        """So much of background orders may be unacknowledged, but always one block. May be changed at any time."""
        self._blocks = blocks
        self._block_bytes = block_bytes
        self._window_bytes = window_bytes
        self._turns = deque[StandingOrder]()
        self._background_turns = deque[StandingOrder]()
        self._in_flight: dict[BlockHash, SendClass] = {}
        self._num_background_in_flight = 0
        self._num_normal = 0
        self._num_background = 0

    # --- what waits

    @property
    def backlog(self) -> Bytes:
        """Of the normal class, on its way included."""
        return Bytes(self._num_normal * self._block_bytes)

    @property
    def background_backlog(self) -> Bytes:
        """Of blocks that only background orders want."""
        return Bytes(self._num_background * self._block_bytes)

    def count(self, record: WantedBlock) -> None:
        """The block's state, its presence or who wants it may have changed."""
        before, now = record.counted, record.counts_as()
        if before is not now:
            record.counted = now
            self._num_normal += (now is SendClass.NORMAL) - (before is SendClass.NORMAL)
            self._num_background += (now is SendClass.BACKGROUND) - (before is SendClass.BACKGROUND)

    def push(self, order: StandingOrder, index: int, block: BlockHash) -> None:
        """The order's block at ``index`` can be sent."""
        heappush(order.sendable, (index, block))
        if not order.is_queued:
            self._enqueue(order)

    def reclassify(self, order: StandingOrder, send_class: SendClass) -> None:
        """The order takes its turns in another class."""
        self.leave(order)
        order.send_class = send_class
        if order.sendable:
            self._enqueue(order)

    def leave(self, order: StandingOrder) -> None:
        """The order has no turn any more."""
        if order.is_queued:
            order.is_queued = False
            self._turns_of(order).remove(order)

    def _enqueue(self, order: StandingOrder) -> None:
        order.is_queued = True
        self._turns_of(order).append(order)

    def _turns_of(self, order: StandingOrder) -> deque[StandingOrder]:
        return self._turns if order.is_normal else self._background_turns

    # --- what goes

    def take(self) -> tuple[StandingOrder, BlockHash] | None:
        """The block to send now and whose turn it was, or None if there is none or the window is full."""
        if not self._has_window(len(self._in_flight), self._window_bytes):
            return None
        taken = self._take_of(self._turns)
        if taken is None and self._has_window(self._num_background_in_flight, self.background_window):
            taken = self._take_of(self._background_turns)
        return taken

    def _has_window(self, num_used: int, window: Bytes) -> bool:
        return not num_used or (num_used + 1) * self._block_bytes <= window

    def _take_of(self, turns: deque[StandingOrder]) -> tuple[StandingOrder, BlockHash] | None:
        while turns:
            order = turns.popleft()
            block = self._pop_sendable(order)
            order.is_queued = block is not None
            if block is not None:
                turns.append(order)
                self._in_flight[block] = order.send_class
                self._num_background_in_flight += not order.is_normal
                return order, block
        return None

    def _pop_sendable(self, order: StandingOrder) -> BlockHash | None:
        while order.sendable:
            _, block = heappop(order.sendable)
            record = self._blocks.get(block)
            if record is not None and record.state is BlockState.LACKED and record.present:
                return block
        return None

    # --- what is on its way

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def is_in_flight(self, block: BlockHash) -> bool:
        return block in self._in_flight

    def landed(self, block: BlockHash) -> None:
        """The block is not on its way any more."""
        self._num_background_in_flight -= self._in_flight.pop(block) is SendClass.BACKGROUND

    def clear(self) -> None:
        """The connection is lost: nobody has anything to send, and nothing is on its way."""
        for turns in (self._turns, self._background_turns):
            for order in turns:
                order.is_queued = False
            turns.clear()
        self._in_flight.clear()
        self._num_background_in_flight = 0
