"""A KV node as a router sees it: orders, watches and questions, all over one connection that reopens by itself."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pdd.core.errors import Incompatible, LocalProtocolError, NodeFailed, RemoteProtocolError
from pdd.core.ids import NodeId, NodeInstance, OrderId, PinId
from pdd.core.kv_format import KvFormat
from pdd.core.replication import NodeStats, Pin, Readiness, ReplicationOrder, ReplicationProgress, Watch
from pdd.core.request import SendClass
from pdd.core.topology import Address
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.kvnode.client_session import Failure, Session, Stream
from pdd.kvnode.handshake import check_is_control, greet, hello
from pdd.kvnode.patience import ROUTER_PATIENCE
from pdd.kvnode.receiver import watch_silence
from pdd.protocol.frames import MAX_CONTROL_BYTES
from pdd.protocol.peer import (
    FROM_NODE,
    AskStats,
    CancelOrder,
    EndWatch,
    ErrorKind,
    OrderProgress,
    PeerKind,
    PinBlocks,
    Ping,
    PlaceOrder,
    ReclassifyOrder,
    StartWatch,
    StatsAnswer,
    UnpinBlocks,
    WatchReady,
    Welcome,
)
from pdd.transport.base import ConnectionLost
from pdd.transport.tcp import SocketConnection, connect_tcp
from pdd.transport.together import run_together

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How patient a router is with a node."""

    connect_timeout: Seconds = Seconds(3.0)
    retry_delay: Seconds = Seconds(0.25)
    incompatible_retry_delay: Seconds = Seconds(5.0)
    """A node that refused us must be restarted with another configuration before it can be of use."""
    ping_interval: Seconds = Seconds(1.0)
    silence_limit: Seconds = ROUTER_PATIENCE
    answer_timeout: Seconds = ROUTER_PATIENCE


DEFAULT_CLIENT = ClientSettings()


class TcpNodeClient:
    """``NodeClient`` over TCP. Use it as an async context manager, or put ``run()`` into a task group.

    While the node can't be reached calls raise NodeFailed at once (the very first ones wait for the first attempt);
    running iterators raise it when the connection is lost, since the node ends orders and watches with it.
    """

    def __init__(
        self, *, node: NodeId, address: Address, kv_format: KvFormat, settings: ClientSettings = DEFAULT_CLIENT
    ) -> None:
        self._node = node
        self._address = address
        self._settings = settings
        self._greeting = hello(kind=PeerKind.ROUTER, name="router", instance=secrets.token_hex(8), kv_format=kv_format)
        self._session: Session | None = None
        self._instance: NodeInstance | None = None
        self._attempted = asyncio.Event()
        self._failure = Failure(ErrorKind.NODE_FAILED, f"the client of node {node!r} does not run")
        self._num_questions = 0
        self._tasks: asyncio.TaskGroup | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def node(self) -> NodeId:
        return self._node

    @property
    def instance(self) -> NodeInstance | None:
        """The instance connected to, or None while there is no connection."""
        return self._instance

    # --- life

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._task = self._tasks.create_task(self.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        assert self._tasks is not None
        self._task.cancel()
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            await self._tasks.__aexit__(kind, error, trace)
        else:
            # The group must not wrap what the body raised: callers look for our errors, not for groups of them.
            await self._tasks.__aexit__(None, None, None)

    async def run(self) -> None:
        """Keeps a connection to the node until cancelled."""
        try:
            while True:
                delay = await self._connect_and_talk()
                await asyncio.sleep(delay)
        finally:
            self._end_session(Failure(ErrorKind.NODE_FAILED, f"the client of node {self._node!r} has ended"))
            self._attempted.set()

    async def _connect_and_talk(self) -> Seconds:
        """One connection's life; returns how long to wait before the next."""
        try:
            connection = await self._connect()
        except (ConnectionLost, RemoteProtocolError) as error:
            self._lose_session(Failure(ErrorKind.NODE_FAILED, f"node {self._node!r} is not available: {error}"))
            return self._settings.retry_delay
        except Incompatible as error:
            self._lose_session(Failure(ErrorKind.INCOMPATIBLE, f"node {self._node!r} can't be used: {error}"))
            return self._settings.incompatible_retry_delay
        finally:
            self._attempted.set()
        try:
            await self._talk(connection)
        finally:
            connection.close()
        return self._settings.retry_delay

    async def _connect(self) -> SocketConnection:
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                connection = await connect_tcp(self._address, peer=f"node {self._node!r}")
                try:
                    welcome = await greet(connection, self._greeting, expected=self._node)
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError as error:
            raise ConnectionLost(f"no answer at {self._address} in {self._settings.connect_timeout} s") from error
        self._begin_session(connection, welcome)
        return connection

    def _begin_session(self, connection: SocketConnection, welcome: Welcome) -> None:
        connection.open_up(max_control_bytes=MAX_CONTROL_BYTES, block_bytes=None)
        self._session, self._instance = Session(), welcome.instance
        _logger.info("node_connected node=%s instance=%s", self._node, welcome.instance)

    def _lose_session(self, failure: Failure) -> None:
        if failure != self._failure:
            _logger.warning("node_not_connected node=%s reason=%s", self._node, failure.reason)
        self._end_session(failure)

    def _end_session(self, failure: Failure) -> None:
        session, self._session, self._instance, self._failure = self._session, None, None, failure
        if session is not None:
            session.fail(failure)

    async def _talk(self, connection: SocketConnection) -> None:
        session = self._session
        assert session is not None
        try:
            await run_together(
                session.outbox.write_to(connection),
                session.outbox.watch_overflow(),
                self._read(connection, session),
                self._ping(session),
                watch_silence(connection, self._settings.silence_limit),
            )
        except* (ConnectionLost, RemoteProtocolError, Incompatible) as group:
            reason = "; ".join(str(error) for error in group.exceptions)
            self._lose_session(
                Failure(ErrorKind.NODE_FAILED, f"the connection to node {self._node!r} is lost: {reason}")
            )

    async def _ping(self, session: Session) -> None:
        while True:
            session.outbox.put(Ping(), key="ping")
            await asyncio.sleep(self._settings.ping_interval)

    async def _read(self, connection: SocketConnection, session: Session) -> None:
        while True:
            header = await connection.receive_header()
            check_is_control(header.kind)
            session.dispatch(FROM_NODE.decode(await connection.receive_body(header.num_bytes)))

    async def _current(self) -> Session:
        await self._attempted.wait()
        if self._session is None:
            # For callers a node that is of no use is one that is not there: it may be replaced as long as they live.
            raise NodeFailed(self._failure.reason)
        return self._session

    # --- NodeClient

    async def replicate(self, order: ReplicationOrder) -> AsyncGenerator[ReplicationProgress]:
        session = await self._current()
        if order.order in session.orders:
            raise LocalProtocolError(f"order {order.order} is placed already")
        stream = session.orders[order.order] = Stream[OrderProgress]()
        try:
            session.outbox.put(_placing(order))
            while True:
                message = await stream.next()
                yield _progress(message)
                if message.done:
                    return
        finally:
            session.orders.pop(order.order, None)

    async def cancel(self, order: OrderId) -> None:
        session = self._session
        if session is not None:
            session.outbox.put(CancelOrder(order=order))
            if order in session.orders:
                session.orders[order].fail(Failure(ErrorKind.NODE_FAILED, f"order {order} was cancelled"))

    async def reclassify(self, order: OrderId, send_class: SendClass) -> None:
        session = await self._current()
        session.outbox.put(ReclassifyOrder(order=order, send_class=send_class))

    async def pin(self, pin: Pin) -> None:
        session = await self._current()
        session.outbox.put(PinBlocks(pin=pin.pin, hashes=pin.hashes))

    async def unpin(self, pin: PinId) -> None:
        if self._session is not None:
            self._session.outbox.put(UnpinBlocks(pin=pin))

    async def watch(self, watch: Watch) -> AsyncGenerator[Readiness]:
        session = await self._current()
        if watch.watch in session.watches:
            raise LocalProtocolError(f"watch {watch.watch} stands already")
        stream = session.watches[watch.watch] = Stream[WatchReady]()
        start = StartWatch(watch=watch.watch, hashes=watch.hashes, reserve_blocks=watch.reserve_blocks)
        try:
            session.outbox.put(start)
            while True:
                message = await stream.next()
                yield Readiness(watch=watch.watch, num_ready=message.num_ready)
        finally:
            session.watches.pop(watch.watch, None)
            session.outbox.put(EndWatch(watch=watch.watch))

    async def stats(self) -> NodeStats:
        await self._attempted.wait()
        if self._session is None:
            raise self._failure.error()
        session = self._session
        self._num_questions += 1
        number = self._num_questions
        stream = session.stats[number] = Stream[StatsAnswer]()
        try:
            session.outbox.put(AskStats(request=number))
            async with asyncio.timeout(self._settings.answer_timeout):
                answer = await stream.next()
        except TimeoutError as error:
            raise NodeFailed(f"node {self._node!r} did not answer in {self._settings.answer_timeout} s") from error
        finally:
            session.stats.pop(number, None)
        return self._stats_of(answer)

    def _stats_of(self, answer: StatsAnswer) -> NodeStats:
        if self._instance is None:
            raise self._failure.error()
        return NodeStats(
            node=self._node,
            instance=self._instance,
            capacity_blocks=answer.capacity_blocks,
            held_blocks=answer.held_blocks,
            leased_blocks=answer.leased_blocks,
            reserved_blocks=answer.reserved_blocks,
            writing_blocks=answer.writing_blocks,
            orders=answer.orders,
            watches=answer.watches,
            block_bytes=Bytes(answer.block_bytes),
            sent_bytes=answer.sent_bytes,
            received_bytes=answer.received_bytes,
            evictions=answer.evictions,
            digest_failures=answer.digest_failures,
            pinned_blocks=answer.pinned_blocks,
        )


def _progress(message: OrderProgress) -> ReplicationProgress:
    return ReplicationProgress(
        order=OrderId(message.order),
        num_missing=message.num_missing,
        num_acknowledged=message.num_acknowledged,
        sent_bytes=Bytes(message.sent_bytes),
        rate=None if message.rate is None else BytesPerSecond(message.rate),
        backlog=Bytes(message.backlog),
        background_backlog=Bytes(message.background_backlog),
        done=message.done,
    )


def _placing(order: ReplicationOrder) -> PlaceOrder:
    return PlaceOrder(order=order.order, target=order.target, hashes=order.hashes, send_class=order.send_class)
