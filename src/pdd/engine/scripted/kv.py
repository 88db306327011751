"""The KV of scripted engines: none is computed, but every block's bytes follow from its name, so any damage shows.

A block's payload is a function of its hash in which every 8 bytes differ from every other; it is written to the node when
the block fills and checked byte by byte when it is loaded. A transfer that mixes up, cuts or repeats anything is caught.
A node that is gone costs nothing but the hits: the engine goes on without, and tries again now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pdd.core.blocks import BlockHash
from pdd.core.errors import CapacityExhausted, NodeFailed, RemoteProtocolError
from pdd.core.kv_format import KvFormat
from pdd.core.units import Bytes, Seconds
from pdd.engine.block_store import BlockStore, ConnectStore

_logger = logging.getLogger(__name__)
_FIRST_BACKOFF = Seconds(0.1)
_LAST_BACKOFF = Seconds(5.0)
_BATCH_BLOCKS = 16
_ODD = np.uint64(0x9E3779B97F4A7C15)


def block_payload(block: BlockHash, num_bytes: Bytes) -> npt.NDArray[np.uint8]:
    """The one right content of a block, ``[num_bytes]``."""
    seed, mask = (np.uint64(int.from_bytes(block[start : start + 8], "little")) for start in (0, 8))
    words = np.arange(-(-num_bytes // 8), dtype=np.uint64)
    # An odd factor, a sum and an XOR each map 64-bit words one to one: no two words of a block are equal.
    words *= _ODD
    words += seed
    words ^= mask
    return words.view(np.uint8)[:num_bytes]


class ScriptKv:
    """Which blocks a scripted engine has at hand: in its own cache, or after loading in its node's."""

    def __init__(self, kv_format: KvFormat, *, cache_tokens: int, connect: ConnectStore | None) -> None:
        self._block_bytes = kv_format.block_bytes
        self._cache = _BlockCache(kv_format.num_full_blocks(cache_tokens))
        self._link = _StoreLink(connect)

    def find(self, hashes: Sequence[BlockHash]) -> int:
        """How many leading blocks need not be computed. Those only in the node are loaded, those only here exported.

        Raises:
            RemoteProtocolError: a loaded block is not what its name says.
        """
        num_own = self._cache.match(hashes)
        num_held = max(num_own, self._load(hashes, num_own))
        self.keep(hashes[:num_held])
        return num_held

    def keep(self, hashes: Sequence[BlockHash]) -> None:
        """These blocks have been computed (or found): caches them, and writes those that the node lacks."""
        if not hashes:
            return
        self._cache.add(hashes)
        # In batches, so that the node can send the first blocks on before the last ones are written.
        for start in range(0, len(hashes), _BATCH_BLOCKS):
            batch = hashes[start : start + _BATCH_BLOCKS]
            self._link.attempt(partial(self._write, hashes=batch))

    def forget(self) -> None:
        """The engine's process died: its own cache and its connection are gone, the node's blocks are not."""
        self._cache.clear()
        self.close()

    def close(self) -> None:
        """Lets go of the node."""
        self._link.close()

    def _load(self, hashes: Sequence[BlockHash], num_own: int) -> int:
        return self._link.attempt(lambda store: self._check_held(store, hashes, num_own)) or 0

    def _check_held(self, store: BlockStore[Any, Any], hashes: Sequence[BlockHash], num_own: int) -> int:
        lease = store.lease(hashes)
        try:
            for block, slot in list(zip(hashes, lease.slots, strict=False))[num_own:]:
                self._check_payload(block, store.view(slot))
            return len(lease.slots)
        finally:
            store.release(lease)

    def _check_payload(self, block: BlockHash, content: memoryview) -> None:
        right = block_payload(block, self._block_bytes)
        if not np.array_equal(np.frombuffer(content, dtype=np.uint8), right):
            raise RemoteProtocolError(f"block {block.hex()[:16]} does not hold the bytes that its name says")

    def _write(self, store: BlockStore[Any, Any], hashes: Sequence[BlockHash]) -> None:
        slots = store.begin_write(hashes)
        try:
            for slot in slots:
                store.view(slot.slot)[:] = block_payload(slot.hash, self._block_bytes).data
        except BaseException:
            store.abort(slots)
            raise
        if slots:
            store.commit(slots)


class _BlockCache:
    """Names of blocks, least recently used first. Of one sequence the tail goes first: a prefix without it still serves."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[BlockHash, None] = OrderedDict()

    def match(self, hashes: Sequence[BlockHash]) -> int:
        return next((index for index, block in enumerate(hashes) if block not in self._blocks), len(hashes))

    def add(self, hashes: Sequence[BlockHash]) -> None:
        for block in reversed(hashes):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()


Result = TypeVar("Result")


class _StoreLink:
    """A store that may come and go: calls are tried, a lost one is reconnected with a growing delay."""

    def __init__(self, connect: ConnectStore | None) -> None:
        self._connect = connect
        self._store: BlockStore[Any, Any] | None = None
        self._backoff = _FIRST_BACKOFF
        self._next_try = Seconds(0.0)

    def attempt(self, call: Callable[[BlockStore[Any, Any]], Result]) -> Result | None:
        """The call's result; None when there is no node now, or no room in it.

        A connection that was idle may be to a node that has been restarted since. Waiting for the next try would leave
        gaps in what the node is given, so a new connection is tried at once.
        """
        was_open = self._store is not None
        try:
            return self._call(call)
        except NodeFailed as error:
            self._lose(error)
        if was_open:
            try:
                self._next_try = Seconds(0.0)
                return self._call(call)
            except NodeFailed as error:
                self._lose(error)
        return None

    def _call(self, call: Callable[[BlockStore[Any, Any]], Result]) -> Result | None:
        store = self._open()
        try:
            return None if store is None else call(store)
        except CapacityExhausted:
            return None

    def close(self) -> None:
        store, self._store = self._store, None
        self._next_try = Seconds(0.0)
        self._backoff = _FIRST_BACKOFF
        if store is not None:
            store.close()

    def _open(self) -> BlockStore[Any, Any] | None:
        if self._store is None and self._connect is not None and asyncio.get_running_loop().time() >= self._next_try:
            self._store = self._connect()
            self._backoff = _FIRST_BACKOFF
        return self._store

    def _lose(self, error: NodeFailed) -> None:
        _logger.warning("node_lost retry_after_s=%.1f reason=%s", self._backoff, error)
        store, self._store = self._store, None
        if store is not None:
            store.close()
        self._next_try = Seconds(asyncio.get_running_loop().time() + self._backoff)
        self._backoff = Seconds(min(2 * self._backoff, _LAST_BACKOFF))
