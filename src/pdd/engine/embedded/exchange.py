"""Blocks between the engine's own cache and its local KV node.

A node makes the engine faster and its blocks visible to others, but is never needed: one that is absent, dies or hangs
costs one warning and some recomputing; the engine asks again after a growing pause. Leases last only while blocks
are copied. Runs on the compute thread; a call lasts at most the store's own timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pdd.core.blocks import BlockHash
from pdd.core.errors import CapacityExhausted, Incompatible, NodeFailed, ProtocolError
from pdd.core.units import Seconds
from pdd.engine.block_store import BlockStore, ConnectStore, OpenSlot

_logger = logging.getLogger(__name__)

_BATCH_BLOCKS = 16  # so that the node's replication begins before a long export is over
_PAUSE_PER_STALL = 10.0  # a node that hangs is left alone so long that it takes at most a tenth of the engine's time


class BlockBytes(Protocol):
    """The engine's side of a copy."""

    def read_block(self, block: int, target: memoryview, /) -> None: ...

    def write_block(self, block: int, source: memoryview, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to leave a lost node alone: ``first``, then twice as long each time, up to ``last``."""

    first: Seconds = Seconds(0.25)
    last: Seconds = Seconds(1.0)


class NodeExchange:
    """Imports and exports blocks by name. None of its methods but ``connect`` fails for the node's sake.

    ``epoch`` changes whenever the node was lost and found: what it was given before may be gone.
    """

    __slots__ = (
        "_backoff",
        "_bytes",
        "_connect",
        "_now",
        "_pause",
        "_retry_at",
        "_store",
        "epoch",
        "num_exported",
        "num_imported",
    )

    def __init__(
        self,
        connect: ConnectStore,
        block_bytes: BlockBytes,
        *,
        backoff: Backoff = Backoff(),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._bytes = block_bytes
        self._backoff = backoff
        self._now = now
        self._store: BlockStore[Any, Any] | None = None
        self._pause = backoff.first
        self._retry_at: float | None = None  # None: never tried, or connected
        self.epoch = 0
        self.num_imported = 0
        self.num_exported = 0

    @property
    def connected(self) -> bool:
        return self._store is not None

    def connect(self) -> None:
        """Tries the node for the first time, so that a wrong one is refused at start-up; an absent one is not an error.

        Raises:
            Incompatible: it holds another KV format.
        """
        started = self._now()
        try:
            self._store = self._connect()
        except NodeFailed as error:
            self._lost(error, started)

    def refresh(self) -> None:
        """Looks for a lost node, if it is time to: ``epoch`` is up to date afterwards."""
        with self._node():
            pass

    def import_prefix(self, hashes: Sequence[BlockHash], blocks: Sequence[int]) -> int:
        """Copies the longest prefix of ``hashes`` that the node holds into ``blocks``; returns how many that were."""
        num_copied = 0
        with self._node() as store:
            if store is None or not hashes:
                return 0
            lease = store.lease(hashes)
            try:
                for slot, block in zip(lease.slots, blocks, strict=False):
                    self._bytes.write_block(block, store.view(slot))
                    num_copied += 1
            finally:
                store.release(lease)
        self.num_imported += num_copied
        return num_copied

    def export(self, named_blocks: Sequence[tuple[BlockHash, int]]) -> bool:
        """Copies those blocks that the node lacks to it, as far as it has room; False if there is no node to ask."""
        num_offered = 0
        for start in range(0, len(named_blocks), _BATCH_BLOCKS):
            batch = named_blocks[start : start + _BATCH_BLOCKS]
            with self._node() as store:
                if store is None:
                    break
                self._export_batch(store, dict(batch))
                num_offered += len(batch)
        return num_offered == len(named_blocks)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _export_batch(self, store: BlockStore[Any, OpenSlot], block_of_hash: dict[BlockHash, int]) -> None:
        try:
            opened = store.begin_write(tuple(block_of_hash))
        except CapacityExhausted:
            return
        if not opened:
            return
        try:
            for slot in opened:
                self._bytes.read_block(block_of_hash[slot.hash], store.view(slot.slot))
        except BaseException:
            store.abort(opened)
            raise
        store.commit(opened)
        self.num_exported += len(opened)

    @contextmanager
    def _node(self) -> Generator[BlockStore[Any, Any] | None]:
        """The store, connected again if it is time to; None while there is none. Its failure ends here."""
        store = self._store or self._reconnect()
        started = self._now()
        try:
            yield store
        except NodeFailed as error:
            self._lost(error, started)

    def _reconnect(self) -> BlockStore[Any, Any] | None:
        started = self._now()
        if self._retry_at is not None and started < self._retry_at:
            return None
        try:
            self._store = self._connect()
        except Incompatible as error:
            _logger.error("engine_node_refused reason=%s", error)  # noqa: TRY400
            self._retry_at = float("inf")
            return None
        except (NodeFailed, ProtocolError) as error:
            self._lost(error, started)
            return None
        _logger.warning("engine_node_back")
        self.epoch += 1
        self._retry_at = None
        self._pause = self._backoff.first
        return self._store

    def _lost(self, error: NodeFailed | ProtocolError, started: float) -> None:
        if self._retry_at is None:  # said once, not at each try
            _logger.warning("engine_node_lost reason=%s", error)
        self.close()
        now = self._now()
        self._retry_at = now + max(self._pause, _PAUSE_PER_STALL * (now - started))
        self._pause = Seconds(min(self._pause * 2, self._backoff.last))
