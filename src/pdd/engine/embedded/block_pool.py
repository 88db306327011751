"""Who holds which block of the paged cache: reference counts, prefix reuse by hash, least-recently-used eviction.

Books only, no bytes, no torch; owned by the compute thread. A block is *free* (never hashed), *held* (by one or more
sequences), or *cached*: no longer held, but still reusable by its hash until its room is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from pdd.core.blocks import BlockHash


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPoolStats:
    """For metrics and leak checks; the three kinds add up to the pool."""

    num_free: int
    num_held: int
    num_cached: int


class BlockPool:
    """``num_blocks`` blocks, numbered from 0."""

    __slots__ = ("_block_of_hash", "_cached", "_free", "_hash_of_block", "_references")

    def __init__(self, num_blocks: int) -> None:
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # the next one last
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_of_hash: dict[BlockHash, int] = {}
        self._hash_of_block: dict[int, BlockHash] = {}

    @property
    def num_blocks(self) -> int:
        return len(self._references)

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out: free ones, and cached ones by evicting them."""
        return len(self._free) + len(self._cached)

    def stats(self) -> BlockPoolStats:
        num_free, num_cached = len(self._free), len(self._cached)
        return BlockPoolStats(
            num_free=num_free, num_cached=num_cached, num_held=self.num_blocks - num_free - num_cached
        )

    def lookup(self, hashes: Sequence[BlockHash]) -> tuple[int, ...]:
        """The blocks of the longest prefix of ``hashes`` that is here; nothing is held by asking."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._block_of_hash.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return tuple(blocks)

    def hold(self, blocks: Sequence[int]) -> None:
        """Adds a reference to each of these blocks, which ``lookup`` just found."""
        for block in blocks:
            self._cached.pop(block, None)
            self._references[block] += 1

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """Hands out ``count`` blocks, each held once; None, and nothing changes, if there are too few."""
        if count > self.num_available:
            return None
        return tuple(self._take() for _ in range(count))

    def publish(self, block: int, block_hash: BlockHash) -> None:
        """Names a held, full block, so that others reuse it.

        If another block has that name already, this one stays nameless.
        """
        if block_hash not in self._block_of_hash and block not in self._hash_of_block:
            self._block_of_hash[block_hash] = block
            self._hash_of_block[block] = block_hash

    def release(self, blocks: Sequence[int]) -> None:
        """Drops one reference of each block; a sequence's last blocks go first in line for eviction."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._hash_of_block:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_of_hash[self._hash_of_block.pop(block)]
        self._references[block] = 1
        return block
