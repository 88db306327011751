"""Lines between in-memory nodes, and what one node still owes another over them. Timed by the running loop, no tasks.

A line serves one block at a time in the order of asking, so flows share it in turn. Cut, it loses what is on it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, OrderId
from pdd.core.request import SendClass
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.index.blocks import Owner, WriteSlot
from pdd.kvnode.base import ReplicationOrder, ReplicationProgress

RATE_WINDOW = Seconds(2.0)


class Line(Protocol):
    """One direction of a line that joins nodes, perhaps many pairs of them. Faults go through the ``MemoryNetwork``."""

    @property
    def is_cut(self) -> bool: ...

    def send(self, num_bytes: Bytes, sent: Callable[[], None], arrived: Callable[[], None]) -> None:
        """Carries a block. Calls ``sent`` when the same sender may bring its next one, and later ``arrived``.

        Neither is called if the line is cut before. One sender has one block at a time before its ``sent``.
        """
        ...

    def after_delay(self, call: Callable[[], None]) -> None:
        """Carries something tiny, which takes only the delay. It arrives even if the line is cut meanwhile: the receiver
        knows by its connection that it came too late.
        """
        ...

    def cut(self) -> None:
        """Loses everything that is on it or waits for it. Idempotent, like all four."""
        ...

    def restore(self) -> None: ...

    def stall(self) -> None:
        """From now on nothing moves; nothing is lost."""
        ...

    def resume(self) -> None:
        """Everything goes on where it stood."""
        ...


class MemoryLine:
    """One direction of a line. ``rate`` and ``delay`` may be changed at any time; what is on its way keeps its own.

    Stalled, it takes what is sent and told, and lets nothing arrive.
    """

    def __init__(self, *, rate: BytesPerSecond, delay: Seconds) -> None:
        self.rate = rate
        self.delay = delay
        self.is_cut = False
        self.is_stalled = False
        self._held_up: list[Callable[[], None]] = []
        self._queue: deque[tuple[Bytes, Callable[[], None], Callable[[], None]]] = deque()
        self._busy = False
        self._epoch = 0

    def send(self, num_bytes: Bytes, sent: Callable[[], None], arrived: Callable[[], None]) -> None:
        """Calls ``sent`` when the last bit is on the line, ``arrived`` one delay later; neither if it is cut before."""
        self._queue.append((num_bytes, sent, arrived))
        if not self._busy and not self.is_cut:
            self._serve()

    def cut(self) -> None:
        """Loses everything that is on it or waits for it."""
        self.is_cut = True
        self._busy = False
        self._epoch += 1
        self._queue.clear()
        self._held_up.clear()

    def restore(self) -> None:
        self.is_cut = False

    def stall(self) -> None:
        self.is_stalled = True

    def resume(self) -> None:
        self.is_stalled = False
        held_up, self._held_up = self._held_up, []
        for call in held_up:
            call()

    def after_delay(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(self.delay, self._unless_stalled, call)

    def _unless_stalled(self, call: Callable[[], None]) -> None:
        """What became due while nothing moved happens in the same order afterwards."""
        if self.is_stalled:
            self._held_up.append(call)
        else:
            call()

    def _serve(self) -> None:
        num_bytes, sent, arrived = self._queue[0]
        epoch = self._epoch
        asyncio.get_running_loop().call_later(
            num_bytes / self.rate, self._unless_stalled, lambda: self._sent(epoch, sent, arrived)
        )
        self._busy = True

    def _sent(self, epoch: int, sent: Callable[[], None], arrived: Callable[[], None]) -> None:
        if epoch != self._epoch:
            return
        self._busy = False
        self._queue.popleft()
        asyncio.get_running_loop().call_later(self.delay, self._unless_stalled, lambda: self._arrived(epoch, arrived))
        sent()
        if self._queue and not self._busy:
            self._serve()

    def _arrived(self, epoch: int, arrived: Callable[[], None]) -> None:
        if epoch == self._epoch:
            arrived()


@dataclass(slots=True)
class StandingOrder:
    """An order at its source. ``remaining`` is in order of the sequence; ``lacking`` is what the target said it lacks."""

    order: ReplicationOrder
    remaining: dict[BlockHash, None]
    send_class: SendClass
    lacking: set[BlockHash] | None = None
    sent_bytes: int = 0
    failure: str | None = None
    is_lost: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> bool:
        return not self.remaining

    def answer(self, held: Iterable[BlockHash]) -> None:
        """The target has said what it holds: the rest is to be sent."""
        held = set(held)
        self.remaining = {block: None for block in self.order.hashes if block not in held}
        self.lacking = set(self.remaining)
        self.changed.set()

    def acknowledge(self, block: BlockHash) -> None:
        """The target holds a block, whoever sent it."""
        if self.lacking is not None and self.remaining.pop(block, block) is None:
            self.changed.set()

    def fail(self, why: str) -> None:
        self.failure = why
        self.changed.set()


class Flow:
    """What one node sends to another: its orders in turn, one block on the line at a time."""

    def __init__(
        self, source: NodeId, line: MemoryLine, block_bytes: Bytes, *, holds: Callable[[BlockHash], bool]
    ) -> None:
        self.line = line
        self.owner = Owner(f"arrivals from {source}")
        """Whose writes these are at the target."""
        self.in_flight: dict[BlockHash, WriteSlot] = {}
        self.orders: dict[OrderId, StandingOrder] = {}
        self.sending = False
        self.sent_bytes = 0
        self._block_bytes = block_bytes
        self._holds = holds
        self._acknowledged: deque[tuple[float, int]] = deque()

    def in_turn(self) -> list[StandingOrder]:
        """The orders that may send now, the one whose turn it is first."""
        ready = [order for order in self.orders.values() if order.lacking is not None]
        return sorted(ready, key=lambda order: order.send_class is SendClass.BACKGROUND)

    def begin(self, standing: StandingOrder, write: WriteSlot) -> None:
        """A block goes out for an order, which thereby has had its turn."""
        self.orders[standing.order.order] = self.orders.pop(standing.order.order)
        self.in_flight[write.hash] = write
        self.sending = True
        self.sent_bytes += self._block_bytes
        standing.sent_bytes += self._block_bytes

    def acknowledge(self, block: BlockHash) -> None:
        """A block has arrived at the target."""
        self._acknowledged.append((asyncio.get_running_loop().time(), self._block_bytes))
        for order in tuple(self.orders.values()):
            order.acknowledge(block)
            if order.lacking is not None and order.done:
                del self.orders[order.order.order]

    def progress(self, order: StandingOrder) -> ReplicationProgress:
        lacking = None if order.lacking is None else len(order.lacking)
        return ReplicationProgress(
            order=order.order.order,
            num_missing=lacking,
            num_acknowledged=0 if lacking is None else lacking - len(order.remaining),
            sent_bytes=Bytes(order.sent_bytes),
            rate=self._rate(),
            backlog=self._backlog(SendClass.NORMAL),
            background_backlog=self._backlog(SendClass.BACKGROUND),
            done=lacking is not None and order.done,
        )

    def _backlog(self, send_class: SendClass) -> Bytes:
        """What the source holds and some target still lacks: what is not here does not load the line."""
        lacking = {block for order in self._of(send_class) for block in order.remaining}
        if send_class is SendClass.BACKGROUND:
            lacking -= {block for order in self._of(SendClass.NORMAL) for block in order.remaining}
        return Bytes(self._block_bytes * sum(map(self._holds, lacking)))

    def _of(self, send_class: SendClass) -> list[StandingOrder]:
        return [o for o in self.orders.values() if o.lacking is not None and o.send_class is send_class]

    def _rate(self) -> BytesPerSecond | None:
        """Acknowledged bytes over the window, or over the time since the first of them if that is shorter."""
        now = asyncio.get_running_loop().time()
        while self._acknowledged and self._acknowledged[0][0] < now - RATE_WINDOW:
            self._acknowledged.popleft()
        if len(self._acknowledged) < 2:
            return None
        since, first = self._acknowledged[0]
        total = sum(num_bytes for _, num_bytes in self._acknowledged) - first
        return BytesPerSecond(total / (now - since)) if now > since else None
