"""One in-memory node's way to another: what ``kvnode.sender`` and ``kvnode.receiver`` do over TCP, over a simulated
line.

A connection opens as soon as there are orders and both ends and the line are up, and stands until one of them fails.
What was on its way is lost with it. Both ends say what real ones say, through the real books.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Protocol, assert_never

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId
from pdd.core.units import Bytes, Seconds
from pdd.index.blocks import Owner
from pdd.kvnode.outflow import Outflow
from pdd.kvnode.patience import CHECK_INTERVAL, EVICTION_GRACE, PEER_PATIENCE, SILENCE_LIMIT, STALL_TIMEOUT
from pdd.protocol.arrivals import SourceKey
from pdd.protocol.peer import ErrorKind, FromSource, FromTarget, Offer, Ping, Withdraw
from pdd.sim.memory.life import NodeLife
from pdd.sim.memory.line import Line

_BURST = Seconds(0.002)
_MAX_BURST_BLOCKS = 64

_Frame = tuple[BlockHash, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePatience:
    """What ``kvnode.sender.LineSettings`` are to real nodes."""

    peer: Seconds = PEER_PATIENCE
    stall: Seconds = STALL_TIMEOUT
    silence: Seconds = SILENCE_LIMIT
    eviction_grace: Seconds = EVICTION_GRACE
    check_interval: Seconds = CHECK_INTERVAL


class Target(Protocol):
    """The node at the far end."""

    @property
    def node(self) -> NodeId: ...

    @property
    def life(self) -> NodeLife: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Connection:
    life: NodeLife
    """The target's."""
    key: SourceKey
    owner: Owner


class MemoryLane:
    """All orders of one life of a node to one target. ``retry`` says that something may have become possible."""

    def __init__(
        self,
        source: NodeId,
        life: NodeLife,
        target: Target,
        line: Line,
        *,
        window_bytes: Bytes,
        patience: LanePatience,
        numbers: count[int],
    ) -> None:
        self.line = line
        self._source = source
        self._life = life
        self._target = target
        self._patience = patience
        self._numbers = numbers
        self._block_bytes = life.store.kv_format.block_bytes
        self._connection: _Connection | None = None
        self._is_sending = False
        self._answers: list[FromTarget] | None = None
        """On their way here; more may be added until the clock moves on from ``_answered_at``."""
        self._answered_at = 0.0
        self._is_away = False
        self._is_watching_evictions = False
        self.orders = Outflow(
            target=target.node,
            store=life.store,
            window_bytes=window_bytes,
            now=asyncio.get_running_loop().time,
            send=self._tell,
            wake=self.retry,
        )
        life.store.outlets[target.node] = self.orders

    # --- the connection

    def retry(self) -> None:
        """Opens a connection if one is needed and possible, and puts the next block on the line if it takes one."""
        if self._connection is None and self.orders.num_orders and not self._open():
            self._be_away()
        if self.orders.misses_evicted and not self._is_watching_evictions:
            self._watch_evictions()
        self._pump()

    def _open(self) -> bool:
        life = self._target.life
        ends_are_up = self._life.alive and life.alive and not life.attention.is_hung
        if not ends_are_up or self.line.is_cut or self.line.is_stalled:
            return False
        key = SourceKey(f"node {self._source} #{next(self._numbers)}")
        connection = self._connection = _Connection(life, key, Owner(key))
        life.store.add_source(key, partial(self._answer, connection))
        self.orders.opened(life.store.instance, life.index.capacity)
        return True

    def close(self) -> None:
        """The connection is lost, with all that is under way on it. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._is_sending = False
        self._answers = None
        life = connection.life
        life.attention.give_to(partial(life.do_if_alive, partial(life.store.remove_source, connection.key)))
        self.orders.closed()

    def close_if_it_waits(self) -> None:
        """Nothing has moved for too long."""
        if self.orders.awaits_answer:
            self.close()

    def _be_away(self) -> None:
        """Orders wait for a target that can't be reached, but not for ever."""
        if not self._is_away and self._life.alive:
            self._is_away = True
            asyncio.get_running_loop().call_later(self._patience.peer, self._give_up)

    def _give_up(self) -> None:
        self._is_away = False
        if self._connection is None and self._life.alive:
            reason = f"node {self._target.node!r} was unreachable for {self._patience.peer} s"
            self.orders.fail_all(ErrorKind.NODE_FAILED, reason)

    def _is_open(self, connection: _Connection) -> bool:
        return connection is self._connection and connection.life.alive and self._life.alive

    def _watch_evictions(self) -> None:
        self._is_watching_evictions = True
        asyncio.get_running_loop().call_later(self._patience.check_interval, self._check_evictions)
        self.orders.fail_evicted(self._patience.eviction_grace)

    def _check_evictions(self) -> None:
        self._is_watching_evictions = False
        if self._life.alive and self.orders.misses_evicted:
            self._watch_evictions()

    # --- the source's side

    def _tell(self, message: FromSource) -> None:
        connection = self._connection
        assert connection is not None, "a message without a connection"
        self._carry(connection, connection.life, partial(self._hear, connection, message))

    def _carry(self, connection: _Connection, to: NodeLife, call: Callable[[], None]) -> None:
        """Over the line, then into the hands of a process that may be slow."""

        def attend() -> None:
            if self._is_open(connection):
                call()

        def arrive() -> None:
            if self._is_open(connection):
                to.attention.give_to(attend)

        self.line.after_delay(arrive)

    def _pump(self) -> None:
        connection = self._connection
        if connection is None or self._is_sending or self._life.attention.is_hung or not self._life.alive:
            return
        frames = self._take_frames()
        if not frames:
            return
        self._is_sending = True
        num_bytes = Bytes(len(frames) * self._block_bytes)
        self._life.store.counters.sent_bytes[self._target.node] += num_bytes
        self.line.send(num_bytes, partial(self._sent, connection), partial(self._arrive, connection, frames))

    def _take_frames(self) -> list[_Frame]:
        """As many blocks as the line carries in no time worth speaking of, or one."""
        num_blocks = min(_MAX_BURST_BLOCKS, max(1, int(_BURST * self.line.rate / self._block_bytes)))
        frames: list[_Frame] = []
        while len(frames) < num_blocks and (block := self.orders.begin_send()) is not None:
            frames.append((block.hash, bytes(self._life.view(block.slot))))
            self.orders.end_send(block)
        return frames

    def _sent(self, connection: _Connection) -> None:
        if self._is_open(connection):
            self._is_sending = False
            self._pump()

    def _answer(self, connection: _Connection, message: FromTarget) -> None:
        """What is said at one moment arrives together."""
        now = asyncio.get_running_loop().time()
        if self._answers is not None and self._answered_at == now:
            self._answers.append(message)
            return
        self._answers, self._answered_at = [message], now
        self._carry(connection, self._life, partial(self._take_answers, self._answers))

    def _take_answers(self, answers: list[FromTarget]) -> None:
        if self._answers is answers:
            self._answers = None
        self.orders.received(answers)

    # --- the target's side

    def _hear(self, connection: _Connection, message: FromSource) -> None:
        store = connection.life.store
        match message:
            case Offer():
                store.arrivals.offered(connection.key, message)
            case Withdraw():
                store.arrivals.withdrawn(connection.key, message)
            case Ping():
                pass
            case _:
                assert_never(message)
        store.deliver()

    def _arrive(self, connection: _Connection, frames: list[_Frame]) -> None:
        if self._is_open(connection):
            connection.life.attention.give_to(partial(self._receive_all, connection, frames))

    def _receive_all(self, connection: _Connection, frames: list[_Frame]) -> None:
        for block, payload in frames:
            if self._is_open(connection):
                self._receive(connection, block, payload)

    def _receive(self, connection: _Connection, block: BlockHash, payload: bytes) -> None:
        store, key = connection.life.store, connection.key
        store.counters.received_bytes[self._source] += self._block_bytes
        write = store.begin_arrival(connection.owner, block)
        if write is not None:
            store.arrivals.arriving(key, block)
            connection.life.view(write.slot)[:] = payload
            store.arrivals.stored(key, block)
            store.commit(connection.owner, (write,))
        elif store.index.holds(block):
            store.arrivals.stored(key, block)
        else:
            store.arrivals.deferred(key, block)
            store.settle_soon()
        store.deliver()
