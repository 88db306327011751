"""One local engine's connection at its node: leases and writes, which all end with it."""

from __future__ import annotations

from typing import assert_never

from pdd.core.blocks import BlockHash
from pdd.core.errors import RemoteProtocolError
from pdd.index.blocks import Owner, WriteSlot
from pdd.kvnode.handshake import check_is_control
from pdd.kvnode.store import NodeStore
from pdd.protocol.frames import MAX_CONTROL_BYTES, encode_control
from pdd.protocol.peer import (
    FROM_ENGINE,
    AbortWrite,
    BeginWrite,
    CommitWrite,
    Done,
    FromEngine,
    LeaseBlocks,
    Leased,
    ReleaseLease,
    Slots,
    ToEngine,
    WireSlot,
)
from pdd.transport.tcp import SocketConnection

MAX_OPEN_LEASES = 65_536


class EngineSession:
    """Serves one engine, request by request. A lease has no timer: it ends when it is released or the socket closes."""

    def __init__(self, *, key: str, connection: SocketConnection, store: NodeStore) -> None:
        self._owner = Owner(key)
        self._connection = connection
        self._store = store
        self._leases: dict[int, tuple[BlockHash, ...]] = {}

    async def run(self) -> None:
        """Raises ConnectionLost or RemoteProtocolError: why the connection ended."""
        self._connection.open_up(max_control_bytes=MAX_CONTROL_BYTES, block_bytes=None)
        try:
            while True:
                header = await self._connection.receive_header()
                check_is_control(header.kind)
                message = FROM_ENGINE.decode(await self._connection.receive_body(header.num_bytes))
                await self._connection.send(encode_control(self._handle(message)))
        finally:
            self._store.release_owner(self._owner)

    def _handle(self, message: FromEngine) -> ToEngine:
        match message:
            case LeaseBlocks():
                return self._lease(message)
            case ReleaseLease(lease=lease):
                return self._release(lease)
            case BeginWrite(hashes=hashes):
                writes = self._store.begin_write(self._owner, [BlockHash(block) for block in hashes])
                return Slots(slots=tuple(WireSlot(hash=w.hash, slot=w.slot, generation=w.generation) for w in writes))
            case CommitWrite(slots=slots):
                self._store.commit(self._owner, [_write_slot(slot) for slot in slots])
                return Done()
            case AbortWrite(slots=slots):
                self._store.abort(self._owner, [_write_slot(slot) for slot in slots])
                return Done()
            case _:
                assert_never(message)

    def _lease(self, message: LeaseBlocks) -> Leased:
        if message.lease in self._leases or len(self._leases) >= MAX_OPEN_LEASES:
            raise RemoteProtocolError(f"an engine took lease {message.lease} twice, or more than {MAX_OPEN_LEASES}")
        hashes = tuple(BlockHash(block) for block in message.hashes)
        slots = self._store.lease(self._owner, hashes)
        self._leases[message.lease] = hashes[: len(slots)]
        return Leased(slots=slots)

    def _release(self, lease: int) -> Done:
        hashes = self._leases.pop(lease, None)
        if hashes is None:
            raise RemoteProtocolError(f"an engine releases lease {lease}, which it does not have")
        self._store.release(self._owner, hashes)
        return Done()


def _write_slot(slot: WireSlot) -> WriteSlot:
    return WriteSlot(hash=BlockHash(slot.hash), slot=slot.slot, generation=slot.generation)
