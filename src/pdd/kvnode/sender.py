"""The way out to one target node: one connection, opened when there is something to send, reopened when it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from pdd.core.errors import Incompatible, RemoteProtocolError
from pdd.core.ids import NodeId
from pdd.core.topology import Address
from pdd.core.units import Bytes, Seconds
from pdd.kvnode.arena import MappedArena
from pdd.kvnode.handshake import check_is_control, greet, hello
from pdd.kvnode.outflow import Outflow, OutgoingBlock
from pdd.kvnode.patience import CHECK_INTERVAL, EVICTION_GRACE, PEER_PATIENCE, STALL_TIMEOUT
from pdd.kvnode.store import NodeStore
from pdd.protocol.frames import MAX_CONTROL_BYTES, encode_block_head, encode_control
from pdd.protocol.peer import FROM_TARGET, ErrorKind, FromSource, PeerKind, Ping, Pong, Stored
from pdd.transport.base import ConnectionLost
from pdd.transport.tcp import SocketConnection, connect_tcp
from pdd.transport.together import run_together

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSettings:
    """How a node treats its lines to other nodes."""

    peer_patience: Seconds = PEER_PATIENCE
    retry_delay: Seconds = Seconds(0.25)
    connect_timeout: Seconds = Seconds(3.0)
    """To connect and to be welcomed."""
    stall_timeout: Seconds = STALL_TIMEOUT
    """Then the line is opened anew.

    Moving is what the next hop's kernel acknowledges: this must exceed what boxes on the way take to drain their
    buffers.
    """
    max_stall_timeout: Seconds = Seconds(16.0)
    """It doubles up to this while nothing at all gets through between two stalls."""
    ping_interval: Seconds = Seconds(1.0)
    check_interval: Seconds = CHECK_INTERVAL
    eviction_grace: Seconds = EVICTION_GRACE
    window_bytes: Bytes = Bytes(64 * 1024 * 1024)


DEFAULT_LINE = LineSettings()


class Sender:
    """The line to one target; ``run`` belongs in a task group. ``orders`` are what it is for."""

    def __init__(
        self, *, target: NodeId, address: Address, store: NodeStore, memory: MappedArena, settings: LineSettings
    ) -> None:
        self.target = target
        self._address = address
        self._store = store
        self._memory = memory
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._outgoing: deque[FromSource] = deque()
        self._wake = asyncio.Event()
        self.orders = Outflow(
            target=target,
            store=store,
            window_bytes=settings.window_bytes,
            now=self._loop.time,
            send=self._outgoing.append,
            wake=self._wake.set,
        )
        self._unreachable_since: float | None = None
        self._stall_timeout: float = settings.stall_timeout
        self._ping_sent_at: float | None = None

    # --- the line

    async def run(self) -> None:
        """Keeps the line to the target while there are orders, for ever."""
        while True:
            if not self.orders.num_orders:
                self._unreachable_since = None
                self._wake.clear()
                await self._wake.wait()
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
            self.orders.fail_all(ErrorKind.INCOMPATIBLE, f"node {self.target!r} can't be sent to: {error}")
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
        self.orders.opened(answer.instance, answer.capacity_blocks)
        _logger.info("line_opened peer=%s instance=%s", self.target, answer.instance)

    def _note_unreachable(self, reason: str) -> None:
        """A line that opens and ends without a word from the target counts as none."""
        now = self._loop.time()
        if self._unreachable_since is None:
            self._unreachable_since = now
            _logger.warning("peer_unreachable peer=%s reason=%s", self.target, reason)
        elif now - self._unreachable_since >= self._settings.peer_patience:
            self._unreachable_since = None
            self.orders.fail_all(ErrorKind.NODE_FAILED, f"unreachable for {self._settings.peer_patience} s: {reason}")

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
        self._outgoing.clear()
        self._ping_sent_at = None
        self.orders.closed()

    async def _write(self, connection: SocketConnection) -> None:
        while True:
            if self._outgoing:
                await connection.send(encode_control(self._outgoing.popleft()))
                continue
            block = self.orders.begin_send()
            if block is None:
                self._wake.clear()
                await self._wake.wait()
            else:
                await self._send_block(connection, block)

    async def _send_block(self, connection: SocketConnection, block: OutgoingBlock) -> None:
        try:
            payload = self._memory.view(block.slot)
            await connection.send_block(encode_block_head(block.hash, payload), payload)
            self._store.counters.sent_bytes[self.target] += payload.nbytes
        finally:
            self.orders.end_send(block)

    async def _read(self, connection: SocketConnection) -> None:
        while True:
            header = await connection.receive_header()
            check_is_control(header.kind)
            message = FROM_TARGET.decode(await connection.receive_body(header.num_bytes))
            self._unreachable_since = None
            self.orders.received((message,))
            if isinstance(message, Stored):
                self._stall_timeout = self._settings.stall_timeout
            elif isinstance(message, Pong):
                self._ping_sent_at = None

    async def _guard(self, connection: SocketConnection) -> None:
        """Pings, ends orders that wait in vain, and gives a line up on which nothing moves although
        something should.
        """
        progress, moved_at, next_ping = connection.progress(), self._loop.time(), 0.0
        while True:
            await asyncio.sleep(self._settings.check_interval)
            now = self._loop.time()
            self.orders.fail_evicted(self._settings.eviction_grace)
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
        return self.orders.awaits_answer or self._ping_sent_at is not None
