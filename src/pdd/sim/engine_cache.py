"""A modelled engine's own paged cache: blocks by name, shared by running sequences, least recently used out first.

A sequence claims room for all that it will ever hold. Blocks that it found are shared, the others are its own until
they fill and get a name; then others find them too. Pure bookkeeping.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from pdd.core.blocks import BlockHash


@dataclass(slots=True, eq=False)
class Claim:
    """One sequence's room: ``num_own`` blocks without a name, and the named ones in order of the sequence."""

    num_own: int
    num_hits: int
    named: list[BlockHash] = field(default_factory=list[BlockHash])


class EngineCache:
    """``capacity`` blocks."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._used: dict[BlockHash, int] = {}
        self._idle: OrderedDict[BlockHash, None] = OrderedDict()
        self._num_own = 0

    @property
    def num_claimed(self) -> int:
        """Blocks that running sequences hold or will fill."""
        return len(self._used) + self._num_own

    def claim(self, hashes: Sequence[BlockHash], num_blocks: int) -> Claim | None:
        """Room for ``num_blocks``, of which the longest cached prefix of ``hashes`` is there already; None if there is
        none.
        """
        num_hits = self._match(hashes)
        hits = hashes[:num_hits]
        num_idle_hits = sum(block in self._idle for block in hits)
        num_own = num_blocks - num_hits
        if self.num_claimed + num_idle_hits + num_own > self.capacity:
            return None
        for block in hits:
            self._idle.pop(block, None)
            self._used[block] = self._used.get(block, 0) + 1
        self._num_own += num_own
        self._evict()
        return Claim(num_own=num_own, num_hits=num_hits, named=list(hits))

    def fill(self, claim: Claim, hashes: Sequence[BlockHash]) -> None:
        """These of the sequence's own blocks are full.

        One that is cached already, from elsewhere, stays nameless here.
        """
        for block in hashes:
            if block not in self._used:
                self._idle.pop(block, None)
                self._used[block] = 1
                claim.named.append(block)
                claim.num_own -= 1
                self._num_own -= 1

    def release(self, claim: Claim) -> None:
        """The sequence has ended: its full blocks stay as long as there is room, its beginning longest."""
        self._num_own -= claim.num_own
        for block in reversed(claim.named):
            count = self._used.pop(block) - 1
            if count:
                self._used[block] = count
            else:
                self._idle[block] = None

    def clear(self) -> None:
        """Everything is gone, claims included."""
        self._used.clear()
        self._idle.clear()
        self._num_own = 0

    def _match(self, hashes: Sequence[BlockHash]) -> int:
        used, idle = self._used, self._idle
        for index, block in enumerate(hashes):
            if block not in used and block not in idle:
                return index
        return len(hashes)

    def _evict(self) -> None:
        while self.num_claimed + len(self._idle) > self.capacity:
            self._idle.popitem(last=False)
