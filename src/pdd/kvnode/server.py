"""A KV node's process: two doors (TCP for nodes and routers, a Unix socket for engines) around one ``NodeStore``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Generator, Mapping
from itertools import count
from pathlib import Path

from pdd.core.errors import Incompatible, RemoteProtocolError
from pdd.core.ids import NodeId, NodeInstance
from pdd.core.kv_format import KvFormat
from pdd.core.topology import Address
from pdd.core.units import Bytes, Seconds
from pdd.kvnode.arena import Arena
from pdd.kvnode.engine_session import EngineSession
from pdd.kvnode.handshake import receive_hello, send_welcome_with_arena, welcome
from pdd.kvnode.receiver import Receiver
from pdd.kvnode.router_session import RouterSession
from pdd.kvnode.sender import DEFAULT_LINE, LineSettings, Sender
from pdd.kvnode.store import NodeStore
from pdd.protocol.arrivals import SourceKey
from pdd.protocol.frames import encode_control
from pdd.protocol.peer import Hello, PeerKind
from pdd.transport.base import ConnectionLost
from pdd.transport.flood import LogThrottle
from pdd.transport.tcp import SocketConnection, listen_tcp, listen_unix, tune

_logger = logging.getLogger(__name__)

ACCEPT_RETRY_DELAY = Seconds(0.1)

Serve = Callable[[SocketConnection], Awaitable[None]]


async def run_node(
    *,
    node: NodeId,
    kv_format: KvFormat,
    arena_bytes: Bytes,
    listen: Address,
    local_socket: Path,
    peers: Mapping[NodeId, Address],
    on_ready: Callable[[], None],
    settings: LineSettings = DEFAULT_LINE,
) -> None:
    """Runs a node until cancelled; its socket file goes with it.

    ``peers`` are the nodes that it may be ordered to send to, and where they are reached from here.

    Raises:
        ConfigError: the arena can't be had, or an address is in use.
    """
    with contextlib.closing(listen_tcp(listen)) as tcp, _local_door(local_socket) as local:
        await serve_node(
            node=node,
            kv_format=kv_format,
            arena_bytes=arena_bytes,
            tcp=tcp,
            local=local,
            peers=peers,
            on_ready=on_ready,
            settings=settings,
        )


@contextlib.contextmanager
def _local_door(path: Path) -> Generator[socket.socket]:
    with contextlib.closing(listen_unix(path)) as listener:
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


async def serve_node(
    *,
    node: NodeId,
    kv_format: KvFormat,
    arena_bytes: Bytes,
    tcp: socket.socket,
    local: socket.socket,
    peers: Mapping[NodeId, Address],
    on_ready: Callable[[], None],
    settings: LineSettings = DEFAULT_LINE,
) -> None:
    """As ``run_node``, on sockets that listen already and stay the caller's."""
    instance = NodeInstance(secrets.token_hex(8))
    with contextlib.closing(Arena(arena_bytes=arena_bytes, block_bytes=kv_format.block_bytes)) as arena:
        store = NodeStore(node=node, instance=instance, kv_format=kv_format, capacity=arena.memory.capacity)
        await _Server(store, arena, peers, settings).run(tcp=tcp, local=local, on_ready=on_ready)


class _Server:
    """Accepts, greets and hands each connection to its session."""

    def __init__(self, store: NodeStore, arena: Arena, peers: Mapping[NodeId, Address], settings: LineSettings) -> None:
        self._store = store
        self._arena = arena
        self._scratch = memoryview(bytearray(store.kv_format.block_bytes))
        self._senders = [
            Sender(target=target, address=address, store=store, memory=arena.memory, settings=settings)
            for target, address in peers.items()
            if target != store.node
        ]
        self._outflows = {sender.target: sender.orders for sender in self._senders}
        store.outlets.update(self._outflows)
        self._numbers = count(1)
        self._throttle = LogThrottle()
        self._sources: dict[NodeId, tuple[SocketConnection, asyncio.Event]] = {}

    async def run(self, *, tcp: socket.socket, local: socket.socket, on_ready: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for sender in self._senders:
                tasks.create_task(sender.run())
            tasks.create_task(self._accept(tcp, tasks, self._serve_remote))
            tasks.create_task(self._accept(local, tasks, self._serve_engine))
            _logger.info("node_ready node=%s instance=%s", self._store.node, self._store.instance)
            on_ready()

    async def _accept(self, listener: socket.socket, tasks: asyncio.TaskGroup, serve: Serve) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:
                # Out of descriptors, most likely: callers wait in the backlog until some are free again.
                self._log_stranger("accept_failed", str(error))
                await asyncio.sleep(ACCEPT_RETRY_DELAY)
                continue
            tasks.create_task(self._serve(sock, serve))

    async def _serve(self, sock: socket.socket, serve: Serve) -> None:
        connection = SocketConnection(sock, peer="the caller")
        try:
            await serve(connection)
        except* ConnectionLost as group:
            _logger.debug("caller_gone reasons=%s", reasons(group))
        except* (RemoteProtocolError, Incompatible) as group:
            self._log_stranger("caller_dismissed", reasons(group))
        except* Exception:
            # The outermost edge of a connection: whatever went wrong in it must not take the node down.
            _logger.exception("connection_failed")
        finally:
            connection.close()

    def _log_stranger(self, event: str, reason: str) -> None:
        suppressed = self._throttle.admit(Seconds(asyncio.get_running_loop().time()))
        if suppressed is not None:
            _logger.warning("%s reason=%r suppressed=%d", event, reason, suppressed)

    async def _serve_engine(self, connection: SocketConnection) -> None:
        hello = await receive_hello(connection, self._store, allowed=frozenset({PeerKind.ENGINE}))
        send_welcome_with_arena(connection.socket, self._store, self._arena)
        key = f"engine {hello.name} #{next(self._numbers)}"
        await EngineSession(key=key, connection=connection, store=self._store).run()

    async def _serve_remote(self, connection: SocketConnection) -> None:
        tune(connection.socket)
        hello = await receive_hello(connection, self._store, allowed=frozenset({PeerKind.NODE, PeerKind.ROUTER}))
        key = f"{hello.kind} {hello.name} {hello.instance} #{next(self._numbers)}"
        if hello.kind is PeerKind.ROUTER:
            await connection.send(encode_control(welcome(self._store)))
            session = RouterSession(key=key, connection=connection, store=self._store, outflows=self._outflows)
            await session.run()
        else:
            await self._serve_source(connection, hello, SourceKey(key))

    async def _serve_source(self, connection: SocketConnection, hello: Hello, key: SourceKey) -> None:
        """A source has one connection here: a new one means that the old one is dead, whatever this end
        thinks of it.
        """
        source = NodeId(hello.name)
        while source in self._sources:
            previous, ended = self._sources[source]
            previous.break_off()
            await ended.wait()
        ended = asyncio.Event()
        self._sources[source] = (connection, ended)
        try:
            await connection.send(encode_control(welcome(self._store)))
            receiver = Receiver(
                source=source,
                key=key,
                connection=connection,
                store=self._store,
                memory=self._arena.memory,
                scratch=self._scratch,
            )
            await receiver.run()
        finally:
            del self._sources[source]
            ended.set()


def reasons(group: BaseExceptionGroup[Exception]) -> str:
    """All that a group of errors has to say, in one line."""
    return "; ".join(
        reasons(error) if isinstance(error, BaseExceptionGroup) else str(error) for error in group.exceptions
    )
