"""One source node's connection at its target: payloads go straight into the arena, answers go back."""

from __future__ import annotations

import asyncio
import logging
from typing import assert_never

from pdd.core.errors import RemoteProtocolError
from pdd.core.ids import NodeId
from pdd.core.units import Seconds
from pdd.index.blocks import Owner, WriteSlot
from pdd.kvnode.outbox import Outbox
from pdd.kvnode.store import NodeStore
from pdd.protocol.arrivals import SourceKey
from pdd.protocol.frames import MAX_CONTROL_BYTES, BlockHead, FrameKind, payload_digest
from pdd.protocol.peer import FROM_SOURCE, FromSource, Offer, Ping, Pong, Withdraw
from pdd.transport.base import ConnectionLost
from pdd.transport.tcp import SocketConnection
from pdd.transport.together import run_together

_logger = logging.getLogger(__name__)

SILENCE_LIMIT = Seconds(10.0)
"""Sources ping every second: one that is silent for this long is gone, and others may have what it claimed."""
MAX_OPEN_HASHES = 4_000_000


class Receiver:
    """Serves one source. ``run`` returns when the connection has ended and all that it held is released."""

    def __init__(self, *, source: NodeId, key: SourceKey, connection: SocketConnection, store: NodeStore) -> None:
        self._source = source
        self._key = key
        self._owner = Owner(key)
        self._connection = connection
        self._store = store
        self._outbox = Outbox()

    async def run(self) -> None:
        """Raises ConnectionLost or RemoteProtocolError, in a group: why the connection ended."""
        block_bytes = self._store.kv_format.block_bytes
        self._connection.open_up(max_control_bytes=MAX_CONTROL_BYTES, block_bytes=block_bytes)
        self._store.add_source(self._key, self._outbox.put)
        try:
            await run_together(
                self._outbox.write_to(self._connection), self._read(), watch_silence(self._connection, SILENCE_LIMIT)
            )
        finally:
            self._store.remove_source(self._key)

    async def _read(self) -> None:
        while True:
            header = await self._connection.receive_header()
            if header.kind is FrameKind.BLOCK:
                await self._receive_block(await self._connection.receive_block_head())
            else:
                self._handle(FROM_SOURCE.decode(await self._connection.receive_body(header.num_bytes)))
            self._store.deliver()

    def _handle(self, message: FromSource) -> None:
        match message:
            case Offer():
                if self._store.arrivals.num_open + len(message.hashes) > MAX_OPEN_HASHES:
                    raise RemoteProtocolError(f"more than {MAX_OPEN_HASHES} blocks are on offer")
                self._store.arrivals.offered(self._key, message)
            case Withdraw():
                self._store.arrivals.withdrawn(self._key, message)
            case Ping():
                self._outbox.put(Pong(), key="pong")
            case _:
                assert_never(message)

    async def _receive_block(self, head: BlockHead) -> None:
        write = self._store.begin_arrival(self._owner, head.hash)
        if write is None:
            await self._drop(head)
        else:
            await self._fill(head, write)
        self._store.counters.received_bytes[self._source] += self._store.kv_format.block_bytes

    async def _drop(self, head: BlockHead) -> None:
        """The block came twice, or is being written here, or found no room: the line must be read on all the same."""
        await self._connection.receive_into(self._store.scratch)
        if self._store.index.holds(head.hash):
            self._store.arrivals.stored(self._key, head.hash)
        else:
            self._store.arrivals.deferred(self._key, head.hash)
            self._store.settle_soon()

    async def _fill(self, head: BlockHead, write: WriteSlot) -> None:
        arrivals = self._store.arrivals
        arrivals.arriving(self._key, head.hash)
        self._store.deliver()
        payload = self._store.arena.memory.view(write.slot)
        await self._connection.receive_into(payload)
        if payload_digest(payload) == head.digest:
            arrivals.stored(self._key, head.hash)
            self._store.commit(self._owner, (write,))
            return
        self._store.counters.digest_failures += 1
        _logger.warning("damaged_block_dropped peer=%s", self._source)
        arrivals.damaged(self._key, head.hash)
        self._store.abort(self._owner, (write,))


async def watch_silence(connection: SocketConnection, limit: Seconds) -> None:
    """Raises ConnectionLost when nothing was received for ``limit``."""
    loop = asyncio.get_running_loop()
    while True:
        silence = loop.time() - connection.last_received_at
        if silence >= limit:
            raise ConnectionLost(f"the peer was silent for {limit} s")
        await asyncio.sleep(limit - silence)
