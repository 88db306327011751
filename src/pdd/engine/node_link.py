"""An engine's link to its local KV node, which may come and go at any time.

A node makes an engine faster and its blocks visible to others, but is never needed: no request fails because of one
that is absent, dies or hangs. The rules:

- A connection that has fallen silent may be to a node that was restarted since: before each use the kernel is asked, for
  a microsecond, whether it still stands. If a call fails nevertheless, it is tried once more on a new connection.
- Tries to connect are a pause apart, and the pause grows until a call has succeeded. A connection that stood longer than
  that is thus replaced at once. A sequence that begins knocks in any case: what can't be offered before it ends, nobody
  offers.
- A node that hung is asked on a thread of its own whether it is back: that costs the engine no time. If it answers, but
  hangs again and again when it is used, it is left alone for ten times as long as that took, ten seconds of this
  forgiven.
- One warning says that the node was lost, one that it is back.

Calls are synchronous; each lasts at most the store's own timeout. One thread uses a link.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pdd.core.blocks import BlockHash
from pdd.core.errors import CapacityExhausted, Incompatible, NodeFailed, ProtocolError
from pdd.core.units import Seconds
from pdd.engine.block_store import BlockStore, ConnectStore, OpenSlot

_logger = logging.getLogger(__name__)

_BATCH_BLOCKS = 16  # so that the node's replication begins before a long offer is over
_PAUSE_PER_STALL = 10.0  # a node that hangs takes at most a tenth of the engine's time,
_FORGIVEN_S = Seconds(10.0)  # once it has had a second: most nodes that hung are well as soon as they answer
_TRIES = 2

_SourceT = TypeVar("_SourceT")
_ResultT = TypeVar("_ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Between two tries to connect: ``first``, then twice as long each time, up to ``last``."""

    first: Seconds = Seconds(0.25)
    last: Seconds = Seconds(1.0)


class OfferedBlocks:
    """How many of one sequence's first blocks the node was offered, and in which of its lives."""

    __slots__ = ("_epoch", "_num_blocks")

    def __init__(self) -> None:
        self._epoch = 0
        self._num_blocks = 0

    def count(self, epoch: int) -> int:
        """In the life ``epoch``: what an earlier one was given may be gone."""
        return self._num_blocks if epoch == self._epoch else 0

    def mark(self, num_blocks: int, *, epoch: int) -> None:
        self._num_blocks = num_blocks
        self._epoch = epoch


Knock = Callable[[ConnectStore], "Future[BlockStore[Any, Any]]"]
"""Connects to a node that hung; how long the caller waits is the link's owner's choice."""


def knock_in_thread(connect: ConnectStore) -> Future[BlockStore[Any, Any]]:
    """Connects on a thread that ends when ``connect`` does."""
    outcome: Future[BlockStore[Any, Any]] = Future()
    threading.Thread(target=_connect_into, args=(outcome, connect), name="pdd-node-knock", daemon=True).start()
    return outcome


def knock_here(connect: ConnectStore) -> Future[BlockStore[Any, Any]]:
    """Connects at once, for a link on whose thread nobody but its own request waits."""
    outcome: Future[BlockStore[Any, Any]] = Future()
    _connect_into(outcome, connect)
    return outcome


def _connect_into(outcome: Future[BlockStore[Any, Any]], connect: ConnectStore) -> None:
    try:
        outcome.set_result(connect())
    except Exception as error:  # noqa: BLE001 (the thread's edge: whoever takes the outcome gets it)
        outcome.set_exception(error)


class NodeLink:
    """Reads and offers blocks by name. None of its methods but ``connect`` fails for the node's sake.

    Attributes:
        epoch: counts the connections, and so at least the node's lives; 0 before the first.
        num_read: blocks that were read so far.
        num_written: blocks that the node lacked and was given so far.
    """

    __slots__ = (
        "_connect",
        "_has_hung",
        "_is_lost",
        "_knock",
        "_leave_alone_until",
        "_now",
        "_outcome",
        "_owed_until",
        "_pause",
        "_pauses",
        "_store",
        "_try_at",
        "epoch",
        "num_read",
        "num_written",
    )

    def __init__(
        self,
        connect: ConnectStore,
        *,
        pauses: Pauses = Pauses(),
        now: Callable[[], float] = time.monotonic,
        knock: Knock = knock_in_thread,
    ) -> None:
        """Tries nothing yet."""
        self._connect = connect
        self._pauses = pauses
        self._now = now
        self._knock = knock
        self._store: BlockStore[Any, Any] | None = None
        self._outcome: Future[BlockStore[Any, Any]] | None = None
        self._is_lost = False
        self._has_hung = False
        self._pause = pauses.first
        self._try_at = float("-inf")
        self._owed_until = float("-inf")
        self._leave_alone_until = float("-inf")
        self.epoch = 0
        self.num_read = 0
        self.num_written = 0

    @property
    def connected(self) -> bool:
        """Asks the kernel, not the node."""
        return self._store is not None and self._store.is_alive()

    def connect(self) -> None:
        """Tries the node for the first time, so that a wrong one is refused at start-up; an absent one is not an error.

        Raises:
            Incompatible: it holds another KV format.
        """
        self._try_to_connect()

    def look(self) -> None:
        """Looks for a lost node without waiting for the pause to end; call it as a sequence begins that only offers."""
        self._open(knock=True)

    def read_prefix(self, hashes: Sequence[BlockHash], read: Callable[[int, memoryview], None]) -> int:
        """Calls ``read(index, content)`` for the longest prefix of ``hashes`` that the node holds; call it as a
        sequence begins.

        Returns how many blocks were read and stayed leased until all were: the others' content can't be trusted.
        ``read`` may be called again for the same index.
        """
        if not hashes:
            return 0
        num_read = self._attempt(partial(_read_prefix, hashes=hashes, read=read), knock=True) or 0
        self.num_read += num_read
        return num_read

    def count_held(self, hashes: Sequence[BlockHash]) -> int:
        """How many first blocks of ``hashes`` the node holds now; call it as a sequence begins.

        Reads none, promises nothing.
        """
        if not hashes:
            return 0
        return self._attempt(partial(_count_held, hashes=hashes), knock=True) or 0

    def offer(
        self, choose: Callable[[int], Mapping[BlockHash, _SourceT]], fill: Callable[[_SourceT, memoryview], None]
    ) -> int | None:
        """Offers the node ``choose(epoch)``, in order, and has ``fill(source, target)`` write those blocks that it
        lacks.

        Returns the epoch in which all were offered (a full node takes what it can), None if there is no node now.
        """
        for _ in range(_TRIES):  # lost and found on the way, it is asked about everything once more
            if self._open(knock=False) is None:
                return None
            epoch = self.epoch
            if self._write_all(choose(epoch), fill) and self.epoch == epoch:
                return epoch
        return None

    def close(self) -> None:
        """Lets go of the node; the next call looks for it again."""
        store, self._store = self._store, None
        if store is not None:
            store.close()
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            outcome.add_done_callback(_close_unused)

    def _write_all(self, blocks: Mapping[BlockHash, _SourceT], fill: Callable[[_SourceT, memoryview], None]) -> bool:
        hashes = tuple(blocks)
        for start in range(0, len(hashes), _BATCH_BLOCKS):
            batch = hashes[start : start + _BATCH_BLOCKS]
            num_written = self._attempt(partial(_write, hashes=batch, sources=blocks, fill=fill), knock=False)
            if num_written is None:
                return False
            self.num_written += num_written
        return True

    def _attempt(self, call: Callable[[BlockStore[Any, Any]], _ResultT], *, knock: bool) -> _ResultT | None:
        """The call's result, None when there is no node now."""
        for _ in range(_TRIES):
            store = self._open(knock=knock)
            if store is None:
                return None
            started = self._now()
            try:
                result = call(store)
            except NodeFailed as error:
                self._lose(error, started)
                knock = False
            else:
                self._trust()
                return result
        return None

    def _open(self, *, knock: bool) -> BlockStore[Any, Any] | None:
        if self._store is not None and not self._store.is_alive():
            self._lose(NodeFailed("it hung up"), self._now())
        if self._store is None:
            try:
                self._look_for_it(knock=knock)
            except Incompatible as error:
                _logger.error("engine_node_refused reason=%s", error)  # noqa: TRY400
                self._leave_alone_until = float("inf")
        return self._store

    def _look_for_it(self, *, knock: bool) -> None:
        if self._outcome is None and self._may_try(self._now(), knock=knock):
            if self._has_hung:
                self._outcome = self._knock(self._connect)
                self._count_try()
            else:
                self._try_to_connect()
        if self._outcome is not None and self._outcome.done():
            outcome, self._outcome = self._outcome, None
            self._enter(outcome.result, self._now())

    def _may_try(self, now: float, *, knock: bool) -> bool:
        return now >= self._leave_alone_until and (knock or now >= self._try_at)

    def _try_to_connect(self) -> None:
        started = self._now()
        self._count_try()
        self._enter(self._connect, started)

    def _count_try(self) -> None:
        self._try_at = self._now() + self._pause
        self._pause = Seconds(min(2 * self._pause, self._pauses.last))

    def _enter(self, connect: Callable[[], BlockStore[Any, Any]], started: float) -> None:
        """Raises Incompatible."""
        try:
            self._store = connect()
        except Incompatible:
            raise
        except (NodeFailed, ProtocolError) as error:
            self._lose(error, started)
        else:
            self.epoch += 1

    def _lose(self, error: NodeFailed | ProtocolError, started: float) -> None:
        if not self._is_lost:  # said once, not at each try
            _logger.warning("engine_node_lost reason=%s", error)
        self._is_lost = True
        self.close()
        now = self._now()
        took = now - started
        # What is quicker takes at most a tenth of the time by the longest pause alone.
        if took * _PAUSE_PER_STALL >= self._pauses.last:
            self._has_hung = True
            self._owed_until = max(self._owed_until, now) + took * _PAUSE_PER_STALL
            self._leave_alone_until = self._owed_until - _FORGIVEN_S

    def _trust(self) -> None:
        if self._is_lost:
            _logger.warning("engine_node_back")
        self._is_lost = self._has_hung = False
        self._pause = self._pauses.first


def _close_unused(outcome: Future[BlockStore[Any, Any]]) -> None:
    if outcome.exception() is None:
        outcome.result().close()


def _count_held(store: BlockStore[Any, Any], hashes: Sequence[BlockHash]) -> int:
    lease = store.lease(hashes)
    num_held = len(lease.slots)
    store.release(lease)
    return num_held


def _read_prefix(
    store: BlockStore[Any, Any], hashes: Sequence[BlockHash], read: Callable[[int, memoryview], None]
) -> int:
    lease = store.lease(hashes)
    try:
        for index, slot in enumerate(lease.slots):
            read(index, store.view(slot))
    finally:
        store.release(lease)
    return len(lease.slots)


def _write(
    store: BlockStore[Any, OpenSlot],
    hashes: Sequence[BlockHash],
    sources: Mapping[BlockHash, _SourceT],
    fill: Callable[[_SourceT, memoryview], None],
) -> int:
    """How many of ``hashes`` the node lacked and had room for."""
    try:
        opened = store.begin_write(hashes)
    except CapacityExhausted:
        return 0
    if not opened:
        return 0
    try:
        for slot in opened:
            fill(sources[slot.hash], store.view(slot.slot))
    except BaseException:
        store.abort(opened)
        raise
    store.commit(opened)
    return len(opened)
