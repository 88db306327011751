"""All orders of one node to one target, and what the local index has to do with them; whatever carries the blocks.

What carries them (``kvnode.sender`` over TCP, ``sim.memory.lane`` in simulated worlds) says when a connection opens
and closes and what the target says, sends what it is given as ``send``, and fetches block after block while the line
takes more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, NodeInstance
from pdd.core.request import SendClass
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.index.blocks import Owner
from pdd.kvnode.store import NodeStore
from pdd.protocol.orders import (
    BlockToSend,
    Command,
    Keep,
    LetGo,
    OrderChanged,
    OrderEnded,
    OrderFailure,
    OrderKey,
    Send,
    Standing,
)
from pdd.protocol.peer import ErrorKind, FromSource, FromTarget, Stored, max_wanted_blocks
from pdd.protocol.rate import RATE_WINDOW, RateMeter
from pdd.protocol.transfer import SourceTransfer

MAX_NAMED_BLOCKS = 2_097_152
"""Hashes that all orders to one target may name together: 256 requests of a million tokens name half as many."""
REPORT_INTERVAL = Seconds(0.1)
"""Routers hear at once of what is news (what a target lacks, that all is there); of the rest so often."""
BACKGROUND_WINDOW = Seconds(0.25)
"""At the rate of late, background blocks on the line may hold a normal one up for no longer (than one of them)."""

_NOTHING = Standing(num_missing=None, num_acknowledged=0, sent_bytes=Bytes(0))


class OrderListener(Protocol):
    """Whoever placed an order."""

    def changed(self, standing: Standing) -> None:
        """The order stands so now."""
        ...

    def ended(self, standing: Standing, failure: OrderFailure | None) -> None:
        """The order is gone; the last call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingBlock:
    """A block for the line, leased until ``Outflow.end_send``."""

    hash: BlockHash
    slot: int


class Outflow:
    """Satisfies ``store.Outlet``. ``wake`` is called when there may be something to send."""

    def __init__(
        self,
        *,
        target: NodeId,
        store: NodeStore,
        window_bytes: Bytes,
        now: Callable[[], float],
        send: Callable[[FromSource], None],
        wake: Callable[[], None],
    ) -> None:
        self.target = target
        self._store = store
        self._now = now
        self._send = send
        self._wake = wake
        self._transfer = SourceTransfer(
            block_bytes=store.kv_format.block_bytes,
            window_bytes=window_bytes,
            holds=store.index.holds,
            is_writing=store.index.is_writing,
        )
        self._meter = RateMeter(RATE_WINDOW)
        self._listeners: dict[OrderKey, OrderListener] = {}
        self._keeper = Owner(f"blocks for {target}")
        self._line_owner = Owner(f"line to {target}")
        self._kept: set[BlockHash] = set()
        self._target_capacity: int | None = None

    # --- questions

    @property
    def num_orders(self) -> int:
        return self._transfer.num_orders

    @property
    def num_in_flight(self) -> int:
        return self._transfer.queue.num_in_flight

    @property
    def awaits_answer(self) -> bool:
        return self._transfer.awaits_answer

    @property
    def misses_evicted(self) -> bool:
        return self._transfer.misses_evicted

    @property
    def holds_back(self) -> bool:
        return self._transfer.holds_back

    @property
    def backlog(self) -> Bytes:
        return self._transfer.queue.backlog

    @property
    def background_backlog(self) -> Bytes:
        return self._transfer.queue.background_backlog

    def rate(self) -> BytesPerSecond | None:
        """Acknowledged payload per second over the last busy seconds."""
        return self._meter.rate(Seconds(self._now()))

    def standing(self, order: OrderKey) -> Standing:
        return self._transfer.standing(order)

    # --- orders

    def place(
        self, order: OrderKey, hashes: Sequence[BlockHash], send_class: SendClass, listener: OrderListener
    ) -> None:
        """Begins a standing order; the listener hears of it, perhaps before this returns, and perhaps that
        it failed.
        """
        failure = self._reason_to_refuse(hashes)
        if failure is not None:
            listener.ended(_NOTHING, failure)
            return
        self._listeners[order] = listener
        self._transfer.place(order, hashes, send_class)
        self.carry_out()

    def _reason_to_refuse(self, hashes: Sequence[BlockHash]) -> OrderFailure | None:
        """What could never fit is refused, and what would cost more memory to keep in mind than it is worth."""
        capacity = self._target_capacity
        if capacity is not None and len(hashes) > capacity and len(set(hashes)) > capacity:
            return self._too_large(capacity)
        num_named = self._transfer.num_named + len(hashes)
        most = max_wanted_blocks(capacity or 0)
        if num_named <= min(MAX_NAMED_BLOCKS, most):
            return None
        num_wanted = self._transfer.num_wanted_with(hashes)
        if num_named > MAX_NAMED_BLOCKS or num_wanted > most:
            reason = f"too many blocks are on order for node {self.target!r}: {num_wanted} would be"
            return OrderFailure(error=ErrorKind.CAPACITY_EXHAUSTED, reason=reason)
        return None

    def _too_large(self, capacity: int) -> OrderFailure:
        reason = f"an order names more blocks than the arena of node {self.target!r} holds: {capacity}"
        return OrderFailure(error=ErrorKind.CONTEXT_TOO_LONG, reason=reason)

    def reclassify(self, order: OrderKey, send_class: SendClass) -> None:
        """Unknown ones are ignored."""
        self._transfer.reclassify(order, send_class)
        self.carry_out()

    def cancel(self, order: OrderKey) -> None:
        """Ends an order silently; unknown ones are ignored."""
        self._listeners.pop(order, None)
        self._transfer.cancel(order)
        self.carry_out()

    def fail_all(self, error: ErrorKind, reason: str) -> None:
        """Ends every order."""
        self._transfer.fail_all(OrderFailure(error=error, reason=reason))
        self.carry_out()

    # --- what the local index says

    def block_held(self, block: BlockHash) -> None:
        if self._transfer.block_held(block):
            self.carry_out()

    def block_gone(self, block: BlockHash) -> None:
        self._transfer.block_gone(block)

    def block_refused(self, block: BlockHash) -> None:
        self._transfer.block_refused(block)
        self.carry_out()

    def retry_held_back(self) -> None:
        self._transfer.retry_held_back()
        self.carry_out()

    def fail_evicted(self, grace: Seconds) -> None:
        """See ``SourceTransfer.fail_evicted``: call it often."""
        self._transfer.fail_evicted(now=Seconds(self._now()), grace=grace)
        self.carry_out()

    # --- the connection

    def opened(self, instance: NodeInstance, capacity: int) -> None:
        """A connection to this lifetime of the target stands, whose arena has ``capacity`` slots."""
        self._target_capacity = capacity
        self._transfer.fail_larger_than(capacity, self._too_large(capacity))
        self._transfer.connected(instance)
        self.carry_out()

    def closed(self) -> None:
        """It is lost, with whatever was under way on it."""
        self._transfer.disconnected()
        self._meter.idle(Seconds(self._now()))
        self.carry_out()

    def received(self, messages: Iterable[FromTarget]) -> None:
        """Raises RemoteProtocolError: an answer to nothing we asked or sent."""
        num_stored = 0
        for message in messages:
            self._transfer.received(message)
            num_stored += isinstance(message, Stored)
        if num_stored:
            num_bytes = Bytes(num_stored * self._store.kv_format.block_bytes)
            self._meter.acknowledged(Seconds(self._now()), num_bytes)
        if not self._transfer.queue.num_in_flight:
            self._meter.idle(Seconds(self._now()))
        self.carry_out()

    def begin_send(self) -> OutgoingBlock | None:
        """The next block for the line, or None if there is none now. Counts as sent."""
        while True:
            self._transfer.queue.background_window = self._background_window()
            sent = self._transfer.next_block()
            if sent is None:
                return None
            slots = self._store.lease(self._line_owner, (sent.hash,))
            if slots:
                self._meter.busy(Seconds(self._now()))
                return OutgoingBlock(hash=sent.hash, slot=slots[0])
            self._put_back(sent)

    def _background_window(self) -> Bytes:
        """Only asked for while something waits in that class."""
        if not self._transfer.queue.background_backlog:
            return Bytes(0)
        return Bytes(int((self.rate() or 0.0) * BACKGROUND_WINDOW))

    def _put_back(self, sent: BlockToSend) -> None:
        """Either evicted before it could be kept, or one more lease would take room promised to a watch."""
        self._transfer.put_back(sent)
        if not self._store.index.holds(sent.hash):
            self._transfer.block_gone(sent.hash)

    def end_send(self, block: OutgoingBlock) -> None:
        """The line has its bytes, or is lost."""
        self._store.release(self._line_owner, (block.hash,))

    # --- commands

    def carry_out(self) -> None:
        for command in self._transfer.take_commands():
            self._do(command)
        self._wake()

    def _do(self, command: Command) -> None:
        match command:
            case Send(message=message):
                self._send(message)
            case Keep(hash=block):
                self._keep(block)
            case LetGo(hash=block):
                self._let_go(block)
            case OrderChanged(order=order, standing=standing):
                if order in self._listeners:
                    self._listeners[order].changed(standing)
            case OrderEnded(order=order, standing=standing, failure=failure):
                listener = self._listeners.pop(order, None)
                if listener is not None:
                    listener.ended(standing, failure)
            case _:
                assert_never(command)

    def _keep(self, block: BlockHash) -> None:
        if block not in self._kept and self._store.lease(self._keeper, (block,)):
            self._kept.add(block)

    def _let_go(self, block: BlockHash) -> None:
        if block in self._kept:
            self._kept.discard(block)
            self._store.release(self._keeper, (block,))
