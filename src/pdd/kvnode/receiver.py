"""One source node's connection at its target: payloads go straight into the arena, answers go back."""

from __future__ import annotations

import asyncio
import logging
from typing import assert_never

from pdd.core.errors import RemoteProtocolError
from pdd.core.ids import NodeId
from pdd.core.units import BytesPerSecond, Seconds
from pdd.index.blocks import Owner, WriteSlot
from pdd.kvnode.arena import MappedArena
from pdd.kvnode.outbox import Outbox
from pdd.kvnode.patience import SILENCE_LIMIT
from pdd.kvnode.store import NodeStore
from pdd.protocol.arrivals import SourceKey
from pdd.protocol.frames import MAX_CONTROL_BYTES, BlockHead, FrameKind, payload_digest
from pdd.protocol.peer import FROM_SOURCE, FromSource, Offer, Ping, Pong, Withdraw, max_wanted_blocks
from pdd.transport.base import ConnectionLost
from pdd.transport.flood import LogThrottle
from pdd.transport.tcp import SocketConnection
from pdd.transport.together import run_together

_logger = logging.getLogger(__name__)

MAX_CROWD = 4
"""All sources together may offer as much as so many of them."""
FRAME_GRACE = Seconds(15.0)
MIN_FRAME_RATE = BytesPerSecond(4000.0)
"""A frame that has begun must come on at this rate, or it keeps a slot that others need: a tenth of what a block gets
on a line of 300 kbit/s. The grace is longer than any silence that is borne.
"""
FRAME_TICK = Seconds(1.0)


class Receiver:
    """Serves one source. ``run`` returns when the connection has ended and all that it held is released."""

    def __init__(
        self,
        *,
        source: NodeId,
        key: SourceKey,
        connection: SocketConnection,
        store: NodeStore,
        memory: MappedArena,
        scratch: memoryview,
    ) -> None:
        """``scratch`` has room for one block that is dropped; anybody's garbage may be in it."""
        self._source = source
        self._key = key
        self._owner = Owner(key)
        self._connection = connection
        self._store = store
        self._memory = memory
        self._scratch = scratch
        self._outbox = Outbox()
        self._throttle = LogThrottle()

    async def run(self) -> None:
        """Raises ConnectionLost or RemoteProtocolError, in a group: why the connection ended."""
        block_bytes = self._store.kv_format.block_bytes
        self._connection.open_up(max_control_bytes=MAX_CONTROL_BYTES, block_bytes=block_bytes)
        self._store.add_source(self._key, self._outbox.put)
        try:
            await run_together(
                self._outbox.write_to(self._connection),
                self._outbox.watch_overflow(),
                self._read(),
                watch_silence(self._connection, SILENCE_LIMIT),
                watch_frames(self._connection),
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
                self._check_offer(len(message.hashes))
                self._store.arrivals.offered(self._key, message)
            case Withdraw():
                self._store.arrivals.withdrawn(self._key, message)
            case Ping():
                self._outbox.put(Pong(), key="pong")
            case _:
                assert_never(message)

    def _check_offer(self, num_blocks: int) -> None:
        """Raises RemoteProtocolError: what is on offer could never all come, and costs memory until then."""
        limit = 2 * max_wanted_blocks(self._store.index.capacity)
        arrivals = self._store.arrivals
        if (
            arrivals.num_offered_by(self._key) + num_blocks > limit
            or arrivals.num_open + num_blocks > MAX_CROWD * limit
        ):
            raise RemoteProtocolError(f"node {self._source!r} offers more than the {limit} blocks that it may")

    async def _receive_block(self, head: BlockHead) -> None:
        write = self._store.begin_arrival(self._owner, head.hash)
        if write is None:
            await self._drop(head)
        else:
            await self._fill(head, write)
        self._store.counters.received_bytes[self._source] += self._store.kv_format.block_bytes

    async def _drop(self, head: BlockHead) -> None:
        """The block came twice, or is being written here, or found no room: the line must be read on all the same."""
        await self._connection.receive_into(self._scratch)
        if self._store.index.holds(head.hash):
            self._store.arrivals.stored(self._key, head.hash)
        else:
            self._store.arrivals.deferred(self._key, head.hash)
            self._store.settle_soon()

    async def _fill(self, head: BlockHead, write: WriteSlot) -> None:
        arrivals = self._store.arrivals
        arrivals.arriving(self._key, head.hash)
        self._store.deliver()
        payload = self._memory.view(write.slot)
        await self._connection.receive_into(payload)
        if payload_digest(payload) == head.digest:
            arrivals.stored(self._key, head.hash)
            self._store.commit(self._owner, (write,))
            return
        self._store.counters.digest_failures += 1
        suppressed = self._throttle.admit(Seconds(asyncio.get_running_loop().time()))
        if suppressed is not None:
            _logger.warning("damaged_block_dropped peer=%s suppressed=%d", self._source, suppressed)
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


async def watch_frames(
    connection: SocketConnection,
    *,
    grace: Seconds = FRAME_GRACE,
    min_rate: BytesPerSecond = MIN_FRAME_RATE,
    tick: Seconds = FRAME_TICK,
) -> None:
    """Raises ConnectionLost when a frame that has begun trickles in more slowly than ``min_rate`` once ``grace`` is
    over.
    """
    loop = asyncio.get_running_loop()
    frame, elapsed = connection.num_frames, 0.0
    while True:
        before = loop.time()
        await asyncio.sleep(tick)
        # A process that was stopped has not been reading: that is not the peer's fault.
        elapsed += min(loop.time() - before, 2 * tick)
        if connection.num_frames != frame or not connection.num_received_of_frame:
            frame, elapsed = connection.num_frames, 0.0
        elif elapsed > grace + connection.num_received_of_frame / min_rate:
            raise ConnectionLost(
                f"the peer sent {connection.num_received_of_frame} bytes of a frame in {elapsed:.1f} s; it must send "
                f"{min_rate:g} bytes a second"
            )
