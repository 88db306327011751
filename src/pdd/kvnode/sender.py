"""The way out to one target node: one connection, opened when there is something to send, reopened when it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from pdd.core.blocks import BlockHash
from pdd.core.errors import Incompatible, RemoteProtocolError
from pdd.core.ids import NodeId
from pdd.core.request import SendClass
from pdd.core.topology import Address
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.index.blocks import Owner
from pdd.kvnode.handshake import check_is_control, greet, hello
from pdd.kvnode.store import NodeStore
from pdd.protocol.frames import MAX_CONTROL_BYTES, encode_block_head, encode_control
from pdd.protocol.peer import FROM_TARGET, ErrorKind, FromSource, PeerKind, Ping, Pong, Stored, max_wanted_blocks
from pdd.protocol.rate import RateMeter
from pdd.protocol.transfer import (
    BlockToSend,
    Command,
    Keep,
    LetGo,
    OrderChanged,
    OrderEnded,
    OrderFailure,
    OrderKey,
    Send,
    SourceTransfer,
    Standing,
)
from pdd.transport.base import ConnectionLost
from pdd.transport.tcp import SocketConnection, connect_tcp
from pdd.transport.together import run_together

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSettings:
    """How a node treats its lines to other nodes."""

    peer_patience: Seconds = Seconds(10.0)
    """How long a target may stay unreachable before the orders to it fail."""
    retry_delay: Seconds = Seconds(0.25)
    connect_timeout: Seconds = Seconds(3.0)
    """To connect and to be welcomed."""
    stall_timeout: Seconds = Seconds(2.0)
    """With something unanswered, a line on which no byte moves for this long is taken for dead and opened anew.

    Moving is what the next hop's kernel acknowledges: this must exceed what boxes on the way take to drain their buffers.
    """
    max_stall_timeout: Seconds = Seconds(16.0)
    """It doubles up to this while nothing at all gets through between two stalls."""
    ping_interval: Seconds = Seconds(1.0)
    check_interval: Seconds = Seconds(0.25)
    eviction_grace: Seconds = Seconds(3.0)
    """How long an order waits for an evicted block to be written again before it fails."""
    window_bytes: Bytes = Bytes(64 * 1024 * 1024)
    background_window: Seconds = Seconds(0.25)
    """At the rate of late, background blocks on the line may hold a normal one up for no longer (than one of them)."""
    rate_window: Seconds = Seconds(2.0)


DEFAULT_LINE = LineSettings()
MAX_NAMED_BLOCKS = 2_097_152
"""Hashes that all orders to one target may name together: 256 requests of a million tokens name half as many."""


_NOTHING = Standing(num_missing=None, num_acknowledged=0, sent_bytes=Bytes(0))


class OrderListener(Protocol):
    """Whoever placed an order."""

    def changed(self, standing: Standing) -> None:
        """The order stands so now."""
        ...

    def ended(self, standing: Standing, failure: OrderFailure | None) -> None:
        """The order is gone; the last call."""
        ...


class Sender:
    """All orders of this node to one target; ``run`` belongs in a task group. Satisfies ``store.Outlet``."""

    def __init__(self, *, target: NodeId, address: Address, store: NodeStore, settings: LineSettings) -> None:
        self.target = target
        self._address = address
        self._store = store
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        block_bytes = store.kv_format.block_bytes
        self._transfer = SourceTransfer(
            block_bytes=block_bytes,
            window_bytes=settings.window_bytes,
            holds=store.index.holds,
            is_writing=store.index.is_writing,
        )
        self._meter = RateMeter(settings.rate_window)
        self._listeners: dict[OrderKey, OrderListener] = {}
        self._outgoing: deque[FromSource] = deque()
        self._wake = asyncio.Event()
        self._work = asyncio.Event()
        self._keeper = Owner(f"blocks for {target}")
        self._line_owner = Owner(f"line to {target}")
        self._kept: set[BlockHash] = set()
        self._target_capacity: int | None = None
        self._unreachable_since: float | None = None
        self._stall_timeout: float = settings.stall_timeout
        self._ping_sent_at: float | None = None

    # --- orders

    @property
    def num_orders(self) -> int:
        return self._transfer.num_orders

    @property
    def backlog(self) -> Bytes:
        return self._transfer.backlog

    @property
    def background_backlog(self) -> Bytes:
        return self._transfer.background_backlog

    def rate(self) -> BytesPerSecond | None:
        """Acknowledged payload per second over the last busy seconds."""
        return self._meter.rate(Seconds(self._loop.time()))

    def standing(self, order: OrderKey) -> Standing:
        return self._transfer.standing(order)

    def place(
        self, order: OrderKey, hashes: Sequence[BlockHash], send_class: SendClass, listener: OrderListener
    ) -> None:
        """Begins a standing order; the listener hears of it, perhaps before this returns, and perhaps that it failed."""
        failure = self._reason_to_refuse(hashes)
        if failure is not None:
            listener.ended(_NOTHING, failure)
            return
        self._listeners[order] = listener
        self._transfer.place(order, hashes, send_class)
        self._work.set()
        self._carry_out()

    def _reason_to_refuse(self, hashes: Sequence[BlockHash]) -> OrderFailure | None:
        """What could never fit is refused, and what would cost more memory to keep in mind than it is worth."""
        capacity = self._target_capacity
        if capacity is not None and len(set(hashes)) > capacity:
            return self._too_large(capacity)
        num_named = self._transfer.num_named + len(hashes)
        num_wanted = self._transfer.num_wanted_with(hashes)
        if num_named > MAX_NAMED_BLOCKS or num_wanted > max_wanted_blocks(capacity or 0):
            reason = f"too many blocks are on order for node {self.target!r}: {num_wanted} would be"
            return OrderFailure(error=ErrorKind.CAPACITY_EXHAUSTED, reason=reason)
        return None

    def _too_large(self, capacity: int) -> OrderFailure:
        reason = f"an order names more blocks than the arena of node {self.target!r} holds: {capacity}"
        return OrderFailure(error=ErrorKind.CONTEXT_TOO_LONG, reason=reason)

    def reclassify(self, order: OrderKey, send_class: SendClass) -> None:
        """Unknown ones are ignored."""
        self._transfer.reclassify(order, send_class)
        self._carry_out()

    def cancel(self, order: OrderKey) -> None:
        """Ends an order silently; unknown ones are ignored."""
        self._listeners.pop(order, None)
        self._transfer.cancel(order)
        self._carry_out()

    def _fail_all(self, error: ErrorKind, reason: str) -> None:
        self._transfer.fail_all(OrderFailure(error=error, reason=reason))
        self._carry_out()

    # --- what the local index says

    def block_held(self, block: BlockHash) -> None:
        self._transfer.block_held(block)
        self._carry_out()

    def block_gone(self, block: BlockHash) -> None:
        self._transfer.block_gone(block)

    def block_refused(self, block: BlockHash) -> None:
        self._transfer.block_refused(block)
        self._carry_out()

    def retry_held_back(self) -> None:
        self._transfer.retry_held_back()
        self._carry_out()

    # --- commands

    def _carry_out(self) -> None:
        for command in self._transfer.take_commands():
            self._do(command)
        self._wake.set()

    def _do(self, command: Command) -> None:
        match command:
            case Send(message=message):
                self._outgoing.append(message)
            case Keep(hash=block):
                self._keep(block)
            case LetGo(hash=block):
                self._let_go(block)
            case OrderChanged(order=order, standing=standing):
                if order in self._listeners:
                    self._listeners[order].changed(standing)
            case OrderEnded(order=order, standing=standing, failure=failure):
                self._end(order, standing, failure)
            case _:
                assert_never(command)

    def _end(self, order: OrderKey, standing: Standing, failure: OrderFailure | None) -> None:
        listener = self._listeners.pop(order, None)
        if listener is not None:
            listener.ended(standing, failure)

    def _keep(self, block: BlockHash) -> None:
        if block not in self._kept and self._store.lease(self._keeper, (block,)):
            self._kept.add(block)

    def _let_go(self, block: BlockHash) -> None:
        if block in self._kept:
            self._kept.discard(block)
            self._store.release(self._keeper, (block,))

    # --- the line

    async def run(self) -> None:
        """Keeps the line to the target while there are orders, for ever."""
        while True:
            await self._work.wait()
            if not self._transfer.num_orders:
                self._work.clear()
                self._unreachable_since = None
                continue
            connection = await self._connect()
            if connection is not None:
                try:
                    await self._talk(connection)
                finally:
                    self._hang_up(connection)
            await asyncio.sleep(self._settings.retry_delay)

    async def _connect(self) -> SocketConnection | None:
        try:
            return await self._connect_and_greet()
        except Incompatible as error:
            _logger.error("peer_refused peer=%s reason=%s", self.target, error)  # noqa: TRY400
            self._fail_all(ErrorKind.INCOMPATIBLE, f"node {self.target!r} can't be sent to: {error}")
        except (ConnectionLost, RemoteProtocolError) as error:
            self._note_unreachable(str(error))
        return None

    async def _connect_and_greet(self) -> SocketConnection:
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                connection = await connect_tcp(self._address, peer=f"node {self.target!r}")
                try:
                    await self._introduce(connection)
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError as error:
            raise ConnectionLost(f"node {self.target!r} does not answer at {self._address}: timed out") from error
        return connection

    async def _introduce(self, connection: SocketConnection) -> None:
        store = self._store
        greeting = hello(kind=PeerKind.NODE, name=store.node, instance=store.instance, kv_format=store.kv_format)
        answer = await greet(connection, greeting, expected=self.target)
        connection.open_up(max_control_bytes=MAX_CONTROL_BYTES, block_bytes=None)
        self._target_capacity = answer.capacity_blocks
        self._transfer.fail_larger_than(answer.capacity_blocks, self._too_large(answer.capacity_blocks))
        self._transfer.connected(answer.instance)
        self._carry_out()
        _logger.info("line_opened peer=%s instance=%s", self.target, answer.instance)

    def _note_unreachable(self, reason: str) -> None:
        """A line that opens and ends without a word from the target counts as none."""
        now = self._loop.time()
        if self._unreachable_since is None:
            self._unreachable_since = now
            _logger.warning("peer_unreachable peer=%s reason=%s", self.target, reason)
        elif now - self._unreachable_since >= self._settings.peer_patience:
            self._unreachable_since = None
            self._fail_all(ErrorKind.NODE_FAILED, f"unreachable for {self._settings.peer_patience} s: {reason}")

    async def _talk(self, connection: SocketConnection) -> None:
        """Runs the session until the line ends."""
        try:
            await run_together(self._write(connection), self._read(connection), self._guard(connection))
        except* (ConnectionLost, RemoteProtocolError, Incompatible) as group:
            reason = "; ".join(str(error) for error in group.exceptions)
            _logger.warning("line_lost peer=%s reason=%s", self.target, reason)
            self._note_unreachable(reason)

    def _hang_up(self, connection: SocketConnection) -> None:
        connection.close()
        self._transfer.disconnected()
        self._outgoing.clear()
        self._ping_sent_at = None
        self._meter.idle(Seconds(self._loop.time()))
        self._carry_out()

    async def _write(self, connection: SocketConnection) -> None:
        while True:
            if self._outgoing:
                await connection.send(encode_control(self._outgoing.popleft()))
                continue
            self._transfer.background_window = Bytes(int((self.rate() or 0.0) * self._settings.background_window))
            block = self._transfer.next_block()
            if block is None:
                self._wake.clear()
                await self._wake.wait()
            else:
                await self._send_block(connection, block)

    async def _send_block(self, connection: SocketConnection, sent: BlockToSend) -> None:
        store = self._store
        slots = store.lease(self._line_owner, (sent.hash,))
        if not slots:
            # Either evicted before it could be pinned, or one more lease would take room promised to a watch.
            self._transfer.put_back(sent)
            if not store.index.holds(sent.hash):
                self._transfer.block_gone(sent.hash)
            return
        try:
            self._meter.busy(Seconds(self._loop.time()))
            payload = store.arena.memory.view(slots[0])
            await connection.send_block(encode_block_head(sent.hash, payload), payload)
            store.counters.sent_bytes[self.target] += payload.nbytes
        finally:
            store.release(self._line_owner, (sent.hash,))

    async def _read(self, connection: SocketConnection) -> None:
        while True:
            header = await connection.receive_header()
            check_is_control(header.kind)
            message = FROM_TARGET.decode(await connection.receive_body(header.num_bytes))
            self._unreachable_since = None
            self._transfer.received(message)
            if isinstance(message, Stored):
                self._stall_timeout = self._settings.stall_timeout
                self._meter.acknowledged(Seconds(self._loop.time()), self._store.kv_format.block_bytes)
            elif isinstance(message, Pong):
                self._ping_sent_at = None
            if not self._transfer.num_in_flight:
                self._meter.idle(Seconds(self._loop.time()))
            self._carry_out()

    async def _guard(self, connection: SocketConnection) -> None:
        """Pings, ends orders that wait in vain, and gives a line up on which nothing moves although something should."""
        progress, moved_at, next_ping = connection.progress(), self._loop.time(), 0.0
        while True:
            await asyncio.sleep(self._settings.check_interval)
            now = self._loop.time()
            self._transfer.fail_evicted(now=Seconds(now), grace=self._settings.eviction_grace)
            self._carry_out()
            if connection.progress() != progress or not self._awaits_something():
                progress, moved_at = connection.progress(), now
            elif now - moved_at > self._stall_timeout:
                limit = self._stall_timeout
                self._stall_timeout = min(2 * limit, self._settings.max_stall_timeout)
                raise ConnectionLost(f"no byte moved for {limit} s")
            if now >= next_ping and self._ping_sent_at is None:
                self._ping_sent_at, next_ping = now, now + self._settings.ping_interval
                self._outgoing.append(Ping())
                self._wake.set()

    def _awaits_something(self) -> bool:
        return self._transfer.awaits_answer or self._ping_sent_at is not None
