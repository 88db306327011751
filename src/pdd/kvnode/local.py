"""The engine's door to its KV node: leases, writes and the mapped arena, over the node's Unix socket.

Synchronous: engines call it from their own thread, and so can the workers of other engines. Calls are one short
exchange with the node's process; payloads never pass through the socket. One call at a time: a lock keeps threads
apart.

Call order of a write: ``begin_write``, fill each slot's ``view``, then ``commit`` or ``abort``. Of a read: ``lease``,
copy out of the views, ``release``. A lease ends with the socket at the latest, never by a timer.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from pdd.core.blocks import BlockHash
from pdd.core.errors import LocalProtocolError, NodeFailed, ProtocolError
from pdd.core.ids import NodeId, NodeInstance, WorkerId
from pdd.core.kv_format import KvFormat
from pdd.core.units import Bytes, Seconds
from pdd.index.blocks import WriteSlot
from pdd.kvnode.arena import MappedArena
from pdd.kvnode.handshake import accept_answer, hello
from pdd.protocol.frames import HEADER_BYTES, MAX_CONTROL_BYTES, decode_header, encode_control
from pdd.protocol.peer import (
    HANDSHAKE_ANSWER,
    TO_ENGINE,
    AbortWrite,
    BeginWrite,
    CommitWrite,
    Done,
    LeaseBlocks,
    Leased,
    PeerKind,
    ReleaseLease,
    Slots,
    Welcome,
    WireSlot,
)

AnswerT = TypeVar("AnswerT", Leased, Slots, Done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Held blocks that stay where they are until the lease is released. ``slots`` are the prefix's, in order."""

    number: int
    slots: tuple[int, ...]


class LocalNode:
    """One engine's connection to its node. After NodeFailed the object is dead: make a new one.

    Attributes:
        node: the node's name.
        instance: the lifetime of its process; slots and leases mean nothing to another one.
    """

    def __init__(self, sock: socket.socket, welcome: Welcome, arena: MappedArena) -> None:
        """Use ``connect``."""
        self.node: NodeId = welcome.node
        self.instance: NodeInstance = welcome.instance
        self.capacity_blocks: int = welcome.capacity_blocks
        self._socket = sock
        self._arena = arena
        self._lock = threading.Lock()
        self._is_dead = False
        self._open_leases: set[int] = set()
        self._num_leases = 0

    @classmethod
    def connect(cls, socket_path: Path, kv_format: KvFormat, *, owner: WorkerId, timeout: Seconds) -> LocalNode:
        """Connects and maps the arena; ``timeout`` also bounds each later call.

        Raises:
            NodeFailed: nobody listens there, or the node does not answer.
            Incompatible: the node holds another KV format, or speaks another version.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect(str(socket_path))
            greeting = hello(kind=PeerKind.ENGINE, name=owner, instance=str(os.getpid()), kv_format=kv_format)
            sock.sendall(encode_control(greeting))
            welcome, descriptors = _receive_welcome(sock)
            arena = _map(welcome, descriptors)
        except OSError as error:
            sock.close()
            raise NodeFailed(f"the KV node at {socket_path} does not answer: {error}") from error
        except BaseException:
            sock.close()
            raise
        return cls(sock, welcome, arena)

    def lease(self, hashes: Sequence[BlockHash]) -> Lease:
        """Leases the longest held prefix of ``hashes``, perhaps of no block. Release it soon after use."""
        with self._lock:
            self._num_leases += 1
            number = self._num_leases
            answer = self._ask(LeaseBlocks(lease=number, hashes=tuple(hashes)), Leased)
            self._open_leases.add(number)
        return Lease(number=number, slots=answer.slots)

    def release(self, lease: Lease) -> None:
        """Raises LocalProtocolError: released before."""
        with self._lock:
            if lease.number not in self._open_leases:
                raise LocalProtocolError(f"lease {lease.number} is not open")
            self._open_leases.discard(lease.number)
            self._ask(ReleaseLease(lease=lease.number), Done)

    def begin_write(self, hashes: Sequence[BlockHash]) -> tuple[WriteSlot, ...]:
        """Slots to fill, for those of ``hashes`` that are neither held nor being written; fewer when the
        node is full.
        """
        with self._lock:
            answer = self._ask(BeginWrite(hashes=tuple(hashes)), Slots)
        return tuple(WriteSlot(hash=BlockHash(s.hash), slot=s.slot, generation=s.generation) for s in answer.slots)

    def commit(self, slots: Sequence[WriteSlot]) -> None:
        """Makes filled blocks visible: standing orders and watches see them at once. Stale slots are ignored."""
        with self._lock:
            self._ask(CommitWrite(slots=_wire_slots(slots)), Done)

    def abort(self, slots: Sequence[WriteSlot]) -> None:
        """Gives slots back unfilled. Stale ones are ignored."""
        with self._lock:
            self._ask(AbortWrite(slots=_wire_slots(slots)), Done)

    def view(self, slot: int) -> memoryview:
        """The slot's bytes, ``[block_bytes]``. Write only to slots that ``begin_write`` gave; read only leased ones."""
        return self._arena.view(slot)

    def is_alive(self) -> bool:
        """False once the node has hung up. Only the kernel is asked: a node that hangs is alive."""
        with self._lock:
            if self._is_dead:
                return False
            poller = select.poll()
            poller.register(self._socket, select.POLLIN)
            # The node speaks only when it is asked: between two calls, anything to read is the end.
            return not poller.poll(0)

    def close(self) -> None:
        """Ends all leases and unfinished writes. Idempotent."""
        self._is_dead = True
        self._socket.close()
        self._arena.close()

    def _ask(self, message: msgspec.Struct, expected: type[AnswerT]) -> AnswerT:
        """One exchange. Whatever goes wrong in it, the stream can't be trusted any more."""
        if self._is_dead:
            raise NodeFailed(f"the connection to KV node {self.node!r} is closed")
        try:
            self._socket.sendall(encode_control(message))
            header = decode_header(
                _receive(self._socket, HEADER_BYTES), max_control_bytes=MAX_CONTROL_BYTES, block_bytes=None
            )
            answer = TO_ENGINE.decode(_receive(self._socket, header.num_bytes))
        except (OSError, ProtocolError) as error:
            self._die()
            raise NodeFailed(f"KV node {self.node!r} is gone: {error}") from error
        if not isinstance(answer, expected):
            self._die()
            raise NodeFailed(f"KV node {self.node!r} answers a {type(message).__name__} with a {type(answer).__name__}")
        return answer

    def _die(self) -> None:
        self._is_dead = True
        self._socket.close()


def _receive(sock: socket.socket, num_bytes: int) -> bytes:
    data = bytearray(num_bytes)
    filled = 0
    while filled < num_bytes:
        count = sock.recv_into(memoryview(data)[filled:])
        if count == 0:
            raise ConnectionResetError("the node hung up")
        filled += count
    return bytes(data)


def _receive_welcome(sock: socket.socket) -> tuple[Welcome, list[int]]:
    """The welcome and the descriptors that came with its first byte."""
    start, descriptors, _, _ = socket.recv_fds(sock, HEADER_BYTES, 1)
    try:
        if not start:
            raise ConnectionResetError("the node hung up")
        head = start + _receive(sock, HEADER_BYTES - len(start))
        header = decode_header(head, max_control_bytes=MAX_CONTROL_BYTES, block_bytes=None)
        answer = HANDSHAKE_ANSWER.decode(_receive(sock, header.num_bytes))
        return accept_answer(answer, expected=None), descriptors
    except BaseException:
        _close_all(descriptors)
        raise


def _map(welcome: Welcome, descriptors: Sequence[int]) -> MappedArena:
    try:
        if len(descriptors) != 1:
            raise ConnectionResetError("the node sent no arena")
        block_bytes, capacity = Bytes(welcome.block_bytes), welcome.capacity_blocks
        return MappedArena(descriptors[0], block_bytes=block_bytes, capacity=capacity)
    finally:
        _close_all(descriptors)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _wire_slots(slots: Sequence[WriteSlot]) -> tuple[WireSlot, ...]:
    return tuple(WireSlot(hash=slot.hash, slot=slot.slot, generation=slot.generation) for slot in slots)
