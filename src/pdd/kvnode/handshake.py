"""The first exchange on every connection, from both ends."""

from __future__ import annotations

import asyncio
import socket

from pdd.core.errors import Incompatible, RemoteProtocolError
from pdd.core.ids import NodeId
from pdd.core.kv_format import KvFormat
from pdd.core.units import Seconds
from pdd.kvnode.arena import Arena
from pdd.kvnode.store import NodeStore
from pdd.protocol.compatibility import reason_to_refuse
from pdd.protocol.frames import FrameKind, encode_control
from pdd.protocol.peer import (
    HANDSHAKE_ANSWER,
    HELLO,
    PROTOCOL_VERSION,
    Hello,
    PeerKind,
    Refused,
    Welcome,
)
from pdd.transport.base import ConnectionLost
from pdd.transport.tcp import SocketConnection

HANDSHAKE_TIMEOUT = Seconds(5.0)


def hello(*, kind: PeerKind, name: str, instance: str, kv_format: KvFormat) -> Hello:
    """The greeting of this version."""
    return Hello(
        version=PROTOCOL_VERSION,
        kind=kind,
        name=name,
        instance=instance,
        fingerprint=kv_format.fingerprint,
        kv_format=kv_format.description,
    )


async def greet(connection: SocketConnection, greeting: Hello, *, expected: NodeId) -> Welcome:
    """The caller's half; the caller bounds its time.

    Raises:
        Incompatible: the node refuses, or another node answers than the one expected.
        ConnectionLost: it hung up.
    """
    await connection.send(encode_control(greeting))
    header = await connection.receive_header()
    answer = HANDSHAKE_ANSWER.decode(await connection.receive_body(header.num_bytes))
    return accept_answer(answer, expected=expected)


def accept_answer(answer: Welcome | Refused, *, expected: NodeId | None) -> Welcome:
    """Raises Incompatible: refused, or the wrong node."""
    if isinstance(answer, Refused):
        raise Incompatible(answer.reason)
    if expected is not None and answer.node != expected:
        raise Incompatible(f"node {answer.node!r} answers where node {expected!r} was expected")
    return answer


async def receive_hello(connection: SocketConnection, store: NodeStore, *, allowed: frozenset[PeerKind]) -> Hello:
    """The node's first half. A caller that won't do is told why before this raises.

    Raises:
        Incompatible: other version, other KV format.
        RemoteProtocolError: it does not speak this protocol, or through the wrong door.
        ConnectionLost: it left, or said nothing.
    """
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            try:
                return await _receive_and_check(connection, store, allowed)
            except (Incompatible, RemoteProtocolError) as error:
                await connection.send(encode_control(Refused(reason=str(error))))
                raise
    except TimeoutError as error:
        raise ConnectionLost(f"a caller said nothing within {HANDSHAKE_TIMEOUT} s") from error


async def _receive_and_check(connection: SocketConnection, store: NodeStore, allowed: frozenset[PeerKind]) -> Hello:
    header = await connection.receive_header()
    greeting = HELLO.decode(await connection.receive_body(header.num_bytes))
    reason = reason_to_refuse(greeting, node=store.node, kv_format=store.kv_format)
    if reason is not None:
        raise Incompatible(reason)
    if greeting.kind not in allowed:
        raise RemoteProtocolError(f"{greeting.kind} {greeting.name!r} may not call at this door of node {store.node!r}")
    return greeting


def welcome(store: NodeStore) -> Welcome:
    """The node's answer to a caller it accepts."""
    return Welcome(
        node=store.node,
        instance=store.instance,
        block_bytes=store.kv_format.block_bytes,
        capacity_blocks=store.index.capacity,
    )


def send_welcome_with_arena(sock: socket.socket, store: NodeStore, arena: Arena) -> None:
    """Accepts an engine: the arena's descriptor rides on the first byte of the welcome.

    A fresh socket's empty buffer takes the few bytes at once. Raises ConnectionLost.
    """
    frame = encode_control(welcome(store))
    try:
        num_sent = socket.send_fds(sock, [frame], [arena.descriptor])
    except OSError as error:
        raise ConnectionLost(f"an engine left during the handshake: {error}") from error
    if num_sent != len(frame):
        raise ConnectionLost("an engine does not read its welcome")


def check_is_control(kind: FrameKind) -> None:
    """Raises RemoteProtocolError: a block frame where only messages belong."""
    if kind is not FrameKind.CONTROL:
        raise RemoteProtocolError("a block frame came where only messages may")
