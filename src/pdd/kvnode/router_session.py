"""One router's connection at a node: its orders, watches and pins, which all end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import assert_never

from pdd.core.blocks import BlockHash
from pdd.core.errors import CapacityExhausted, ContextTooLong, RemoteProtocolError
from pdd.core.ids import NodeId
from pdd.index.blocks import RETRY_AFTER, Owner
from pdd.kvnode.handshake import check_is_control
from pdd.kvnode.outbox import Outbox
from pdd.kvnode.outflow import REPORT_INTERVAL, Outflow
from pdd.kvnode.patience import SILENCE_LIMIT
from pdd.kvnode.receiver import watch_frames, watch_silence
from pdd.kvnode.store import NodeStore
from pdd.protocol.frames import MAX_CONTROL_BYTES
from pdd.protocol.orders import OrderFailure, OrderKey, Standing
from pdd.protocol.peer import (
    FROM_ROUTER,
    AskStats,
    CancelOrder,
    EndWatch,
    ErrorKind,
    FromRouter,
    OrderFailed,
    OrderProgress,
    PinBlocks,
    Ping,
    PlaceOrder,
    Pong,
    ReclassifyOrder,
    StartWatch,
    StatsAnswer,
    UnpinBlocks,
    WatchReady,
    WatchRefused,
)
from pdd.transport.tcp import SocketConnection
from pdd.transport.together import run_together

MAX_OPEN = 65_536
"""Orders, watches and pins, of each, that one router may have open."""
MAX_NAMED_BLOCKS = 2_097_152
"""Hashes that all watches of one router may name together: 256 requests of a million tokens name half as many."""


class RouterSession:
    """Serves one router. ``run`` returns when the connection has ended and nothing of it is left."""

    def __init__(
        self, *, key: str, connection: SocketConnection, store: NodeStore, outflows: Mapping[NodeId, Outflow]
    ) -> None:
        self._key = key
        self._connection = connection
        self._store = store
        self._outflows = outflows
        self._outbox = Outbox()
        self._orders: dict[str, _Order] = {}
        self._watches: dict[str, int] = {}
        """How many hashes each of them names."""
        self._pins: dict[str, None] = {}
        self._changed: set[str] = set()

    async def run(self) -> None:
        """Raises ConnectionLost or RemoteProtocolError, in a group: why the connection ended."""
        self._connection.open_up(max_control_bytes=MAX_CONTROL_BYTES, block_bytes=None)
        try:
            await run_together(
                self._outbox.write_to(self._connection),
                self._outbox.watch_overflow(),
                self._read(),
                self._report_progress(),
                watch_silence(self._connection, SILENCE_LIMIT),
                watch_frames(self._connection),
            )
        finally:
            self._end_everything()

    def _end_everything(self) -> None:
        for order in tuple(self._orders.values()):
            order.outflow.cancel(order.key)
        self._orders.clear()
        for watch in self._watches:
            self._store.end_watch(self._owner(watch))
        self._watches.clear()
        for pin in self._pins:
            self._store.release_owner(self._pin_owner(pin))
        self._pins.clear()

    async def _read(self) -> None:
        while True:
            header = await self._connection.receive_header()
            check_is_control(header.kind)
            self._handle(FROM_ROUTER.decode(await self._connection.receive_body(header.num_bytes)))

    def _handle(self, message: FromRouter) -> None:
        match message:
            case PlaceOrder():
                self._place(message)
            case ReclassifyOrder():
                self._reclassify(message)
            case CancelOrder(order=order):
                self._cancel(order)
            case StartWatch():
                self._start_watch(message)
            case EndWatch(watch=watch):
                self._end_watch(watch)
            case PinBlocks():
                self._pin(message)
            case UnpinBlocks(pin=pin):
                self._unpin(pin)
            case AskStats(request=request):
                self._outbox.put(self._stats(request))
            case Ping():
                self._outbox.put(Pong(), key="pong")
            case _:
                assert_never(message)

    # --- orders

    def _place(self, message: PlaceOrder) -> None:
        if message.order in self._orders or len(self._orders) >= MAX_OPEN:
            raise RemoteProtocolError(f"the router placed order {message.order!r} twice, or more than {MAX_OPEN}")
        outflow = self._outflows.get(NodeId(message.target))
        if outflow is None:
            reason = f"node {self._store.node!r} knows no peer {message.target!r}"
            failure = OrderFailed(order=message.order, error=ErrorKind.NODE_FAILED, reason=reason)
            self._outbox.put(failure, key=("order", message.order))
            return
        order = _Order(session=self, name=message.order, key=OrderKey(f"{self._key}/{message.order}"), outflow=outflow)
        self._orders[message.order] = order
        outflow.place(order.key, [BlockHash(block) for block in message.hashes], message.send_class, order)

    def _reclassify(self, message: ReclassifyOrder) -> None:
        order = self._orders.get(message.order)
        if order is not None:
            order.outflow.reclassify(order.key, message.send_class)

    def _cancel(self, name: str) -> None:
        order = self._orders.pop(name, None)
        if order is not None:
            order.outflow.cancel(order.key)

    def report(self, name: str, message: OrderProgress) -> None:
        """Reports at once."""
        self._outbox.put(message, key=("order", name))

    def report_soon(self, name: str) -> None:
        """Reports with the next round."""
        self._changed.add(name)

    def order_ended(self, name: str, message: OrderProgress | OrderFailed) -> None:
        """Reports an order's last word."""
        self._orders.pop(name, None)
        self._outbox.put(message, key=("order", name))

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            changed, self._changed = self._changed, set()
            for name in sorted(changed & set(self._orders)):
                order = self._orders[name]
                self.report(name, order.progress(order.outflow.standing(order.key), done=False))

    # --- watches

    def _owner(self, watch: str) -> Owner:
        return Owner(f"{self._key}/watch/{watch}")

    def _start_watch(self, message: StartWatch) -> None:
        watch = message.watch
        if watch in self._watches or len(self._watches) >= MAX_OPEN:
            raise RemoteProtocolError(f"the router started watch {watch!r} twice, or more than {MAX_OPEN}")
        hashes = [BlockHash(block) for block in message.hashes]
        try:
            self._check_size(len(hashes))
            self._store.start_watch(self._owner(watch), hashes, message.reserve_blocks, self._reporter(watch))
        except CapacityExhausted as error:
            self._refuse(watch, ErrorKind.CAPACITY_EXHAUSTED, str(error))
        except ContextTooLong as error:
            self._refuse(watch, ErrorKind.CONTEXT_TOO_LONG, str(error))
        else:
            self._watches[watch] = len(hashes)

    def _check_size(self, num_hashes: int) -> None:
        """Raises ContextTooLong or CapacityExhausted, as a reservation does."""
        capacity = self._store.index.capacity
        if num_hashes > capacity:
            raise ContextTooLong(
                f"{num_hashes} blocks are more than the node's arena of {capacity}", code="context_length_exceeded"
            )
        if sum(self._watches.values()) + num_hashes > MAX_NAMED_BLOCKS:
            raise CapacityExhausted(
                f"one router's watches name more than {MAX_NAMED_BLOCKS} blocks", retry_after_s=RETRY_AFTER
            )

    def _reporter(self, watch: str) -> _ReadyReporter:
        return _ReadyReporter(watch, self._outbox)

    def _refuse(self, watch: str, error: ErrorKind, reason: str) -> None:
        self._outbox.put(WatchRefused(watch=watch, error=error, reason=reason), key=("watch", watch))

    def _end_watch(self, watch: str) -> None:
        if watch in self._watches:
            del self._watches[watch]
            self._store.end_watch(self._owner(watch))

    # --- pins

    def _pin_owner(self, pin: str) -> Owner:
        return Owner(f"{self._key}/pin/{pin}")

    def _pin(self, message: PinBlocks) -> None:
        """One too many costs the oldest: a pin is a wish."""
        self._pins.pop(message.pin, None)
        self._pins[message.pin] = None
        if len(self._pins) > MAX_OPEN:
            self._unpin(next(iter(self._pins)))
        self._store.pin(self._pin_owner(message.pin), [BlockHash(block) for block in message.hashes])

    def _unpin(self, pin: str) -> None:
        if pin in self._pins:
            del self._pins[pin]
            self._store.unpin(self._pin_owner(pin))

    # --- stats

    def _stats(self, request: int) -> StatsAnswer:
        index, counters = self._store.index, self._store.counters
        return StatsAnswer(
            request=request,
            capacity_blocks=index.capacity,
            held_blocks=index.num_held,
            leased_blocks=index.num_leased,
            reserved_blocks=index.num_reserved,
            writing_blocks=index.num_writing,
            orders=sum(outlet.num_orders for outlet in self._store.outlets.values()),
            watches=self._store.num_watches,
            block_bytes=self._store.kv_format.block_bytes,
            sent_bytes=dict(counters.sent_bytes),
            received_bytes=dict(counters.received_bytes),
            evictions=index.evictions,
            digest_failures=counters.digest_failures,
            pinned_blocks=index.num_pinned,
        )


class _ReadyReporter:
    """Reports a watch when its number of ready blocks has grown."""

    def __init__(self, watch: str, outbox: Outbox) -> None:
        self._watch = watch
        self._outbox = outbox
        self._reported: int | None = None

    def __call__(self, num_ready: int) -> None:
        if num_ready != self._reported:
            self._reported = num_ready
            self._outbox.put(WatchReady(watch=self._watch, num_ready=num_ready), key=("watch", self._watch))


class _Order:
    """One order of this router; satisfies ``outflow.OrderListener``."""

    def __init__(self, *, session: RouterSession, name: str, key: OrderKey, outflow: Outflow) -> None:
        self.key = key
        self.outflow = outflow
        self._session = session
        self._name = name
        self._num_missing_reported: int | None = None
        self._is_new = True

    def changed(self, standing: Standing) -> None:
        is_news = self._is_new or standing.num_missing != self._num_missing_reported
        self._is_new, self._num_missing_reported = False, standing.num_missing
        if is_news:
            self._session.report(self._name, self.progress(standing, done=False))
        else:
            self._session.report_soon(self._name)

    def ended(self, standing: Standing, failure: OrderFailure | None) -> None:
        if failure is None:
            self._session.order_ended(self._name, self.progress(standing, done=True))
        else:
            message = OrderFailed(order=self._name, error=failure.error, reason=failure.reason)
            self._session.order_ended(self._name, message)

    def progress(self, standing: Standing, *, done: bool) -> OrderProgress:
        """The report for the wire."""
        return OrderProgress(
            order=self._name,
            num_missing=standing.num_missing,
            num_acknowledged=standing.num_acknowledged,
            sent_bytes=standing.sent_bytes,
            rate=self.outflow.rate(),
            backlog=self.outflow.backlog,
            background_backlog=self.outflow.background_backlog,
            done=done,
        )
