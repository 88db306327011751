"""The KV of scripted engines: none is computed, but every block's bytes follow from its name, so any damage shows.

A block's payload is a function of its hash in which every 8 bytes differ from every other; it is written to the node
when the block fills and checked byte by byte when it is loaded. A transfer that mixes up, cuts or repeats anything is
caught.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pdd.core.blocks import BlockHash
from pdd.core.errors import RemoteProtocolError
from pdd.core.kv_format import KvFormat
from pdd.core.units import Bytes
from pdd.engine.block_store import ConnectStore
from pdd.engine.node_link import NodeLink, OfferedBlocks

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
        self._link = None if connect is None else NodeLink(connect, now=_loop_time)

    @property
    def connected(self) -> bool:
        return self._link is not None and self._link.connected

    def connect(self) -> None:
        """See ``NodeLink.connect``. Raises Incompatible."""
        if self._link is not None:
            self._link.connect()

    def find(self, hashes: Sequence[BlockHash]) -> int:
        """How many leading blocks need not be computed; those that are only in the node are loaded. Call it first.

        Raises:
            RemoteProtocolError: a loaded block is not what its name says.
        """
        num_held = self._cache.match(hashes)
        if self._link is not None:
            missing = hashes[num_held:]
            num_held += self._link.read_prefix(missing, lambda index, content: self._check(missing[index], content))
        self.keep(hashes[:num_held])
        return num_held

    def keep(self, hashes: Sequence[BlockHash]) -> None:
        """These blocks have been computed or found: caches them."""
        self._cache.add(hashes)

    def offer(self, hashes: Sequence[BlockHash], offered: OfferedBlocks) -> None:
        """Writes those of a sequence's blocks to the node that it lacks. ``hashes`` are all so far, kept ones.

        Hits too: others load from the node, which may have lost what this cache still has.
        """
        if self._link is None:
            return
        epoch = self._link.offer(lambda epoch: {each: each for each in hashes[offered.count(epoch) :]}, self._fill)
        if epoch is not None:
            offered.mark(len(hashes), epoch=epoch)

    def forget(self) -> None:
        """The engine's process died: its own cache and its connection are gone, the node's blocks are not."""
        self._cache.clear()
        self.close()

    def close(self) -> None:
        """Lets go of the node."""
        if self._link is not None:
            self._link.close()

    def _check(self, block: BlockHash, content: memoryview) -> None:
        right = block_payload(block, self._block_bytes)
        if not np.array_equal(np.frombuffer(content, dtype=np.uint8), right):
            raise RemoteProtocolError(f"block {block.hex()[:16]} does not hold the bytes that its name says")

    def _fill(self, block: BlockHash, target: memoryview) -> None:
        target[:] = block_payload(block, self._block_bytes).data


class _BlockCache:
    """Names of blocks, least recently used first.

    Of one sequence the tail goes first: a prefix without it still serves.
    """

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


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
