"""Who holds which block of the paged cache: reference counts, prefix reuse by hash, least-recently-used eviction.

Books only, no bytes, no torch; owned by the compute thread. A block is *free* (never hashed), *held* (by one or more
sequences), or *cached*: no longer held, but still reusable by its hash until its room is needed. Free blocks are handed
out in runs, because attention reads neighbouring blocks without copying them together first.
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
        self._free = [True] * num_blocks
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_of_hash: dict[BlockHash, int] = {}
        self._hash_of_block: dict[int, BlockHash] = {}

    @property
    def num_blocks(self) -> int:
        return len(self._references)

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out: free ones, and cached ones by evicting them."""
        return sum(self._free) + len(self._cached)

    def stats(self) -> BlockPoolStats:
        num_free, num_cached = sum(self._free), len(self._cached)
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

    def allocate(self, count: int, *, after: int | None) -> tuple[int, ...] | None:
        """Hands out ``count`` blocks, held once, right behind block ``after`` where possible; None if there are too few."""
        if count > self.num_available:
            return None
        for _ in range(count - sum(self._free)):
            self._evict()
        blocks: list[int] = []
        while len(blocks) < count:
            block = self._choose_free(blocks[-1] if blocks else after, count - len(blocks))
            self._free[block] = False
            self._references[block] = 1
            blocks.append(block)
        return tuple(blocks)

    def publish(self, block: int, block_hash: BlockHash) -> None:
        """Names a held, full block, so that others reuse it. If another block has that name already, this one stays nameless."""
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
                    self._free[block] = True

    def _choose_free(self, previous: int | None, wanted: int) -> int:
        """The neighbour of ``previous``, else the middle of the longest free run, so that whoever ends before it can grow."""
        if previous is not None and previous + 1 < self.num_blocks and self._free[previous + 1]:
            return previous + 1
        start, length = _longest_run(self._free)
        middle = start + length // 2
        return middle if start > 0 and length - length // 2 >= wanted else start

    def _evict(self) -> None:
        block, _ = self._cached.popitem(last=False)
        del self._block_of_hash[self._hash_of_block.pop(block)]
        self._free[block] = True


def _longest_run(flags: Sequence[bool]) -> tuple[int, int]:
    """Start and length of the longest run of True; (0, 0) if there is none."""
    best_start = best_length = start = length = 0
    for index, flag in enumerate(flags):
        if not flag:
            length = 0
            continue
        start = index if length == 0 else start
        length += 1
        if length > best_length:
            best_start, best_length = start, length
    return best_start, best_length
