"""What the router believes each KV node holds, so that requests are sent to where their prefix is.

It only counts what it saw landing, and forgets as a node does: the least recently used first, a sequence's end before
its beginning, at most as many blocks as the node has slots. So what it believes of a sequence is always a beginning of
it. It is never asked about anything that must be true: a wrong belief costs time, not an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, NodeInstance
from pdd.core.replication import NodeStats

_SPARE_NAMES = 1024


class Prefixes:
    """``stats`` are the newest books of the nodes that answer, by node; they say how much fits and who restarted."""

    def __init__(self, stats: Mapping[NodeId, NodeStats]) -> None:
        self._stats = stats
        self._nodes: dict[NodeId, _NodeBlocks] = {}

    def landed(self, node: NodeId, hashes: Sequence[BlockHash]) -> None:
        """``hashes`` begin a sequence, and the node has just written, received or read all of them."""
        blocks = self._blocks_at(node)
        if blocks is not None and hashes:
            blocks.use(tuple(hashes))

    def prefix_at(self, node: NodeId, hashes: Sequence[BlockHash]) -> int:
        """How many of a sequence's first blocks the node is believed to hold; none while it does not answer."""
        blocks = self._blocks_at(node)
        return 0 if blocks is None else blocks.prefix(hashes)

    def forget(self, node: NodeId) -> None:
        """The node has lost everything."""
        self._nodes.pop(node, None)

    def num_blocks(self, node: NodeId) -> int:
        """How many blocks the node is believed to hold."""
        return self._nodes[node].num_blocks if node in self._nodes else 0

    def _blocks_at(self, node: NodeId) -> _NodeBlocks | None:
        stats = self._stats.get(node)
        if stats is None:
            return None
        blocks = self._nodes.get(node)
        if blocks is None or blocks.instance != stats.instance:
            blocks = self._nodes[node] = _NodeBlocks(stats.instance, stats.capacity_blocks)
        return blocks


@dataclass(slots=True)
class _Use:
    """Some sequence's first blocks were used at ``time``; the last of them were not used since."""

    time: int
    hashes: tuple[BlockHash, ...]


class _NodeBlocks:
    """One node's blocks, each with the time of its last use.

    A use touches a beginning, so along a sequence times never grow. Hence the blocks that an old use still accounts for
    are a tail of it, and a sequence's known beginning can be found by bisection.
    """

    def __init__(self, instance: NodeInstance, capacity: int) -> None:
        self.instance = instance
        self._capacity = capacity
        self._used: dict[BlockHash, int] = {}
        self._uses: deque[_Use] = deque()
        self._num_names = 0
        self._now = 0

    @property
    def num_blocks(self) -> int:
        return len(self._used)

    def use(self, hashes: tuple[BlockHash, ...]) -> None:
        self._now += 1
        self._used.update(dict.fromkeys(hashes, self._now))
        self._uses.append(_Use(self._now, hashes))
        self._num_names += len(hashes)
        while len(self._used) > self._capacity:
            self._drop_oldest()
        if self._num_names > 2 * len(self._used) + _SPARE_NAMES:
            self._tidy()

    def prefix(self, hashes: Sequence[BlockHash]) -> int:
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self._used:
                low = middle
            else:
                high = middle - 1
        return low

    def _drop_oldest(self) -> None:
        """Forgets blocks of the oldest use, from its end, until the rest fits."""
        oldest = self._uses.popleft()
        self._num_names -= len(oldest.hashes)
        end = len(oldest.hashes)
        while end and self._used.get(oldest.hashes[end - 1]) == oldest.time:
            if len(self._used) <= self._capacity:
                self._uses.appendleft(_Use(oldest.time, oldest.hashes[:end]))
                self._num_names += end
                return
            end -= 1
            del self._used[oldest.hashes[end]]

    def _tidy(self) -> None:
        """Keeps of each use only the blocks that it still accounts for: as many names in all as there are blocks."""
        kept = [_Use(use.time, use.hashes[self._first_own(use) :]) for use in self._uses]
        self._uses = deque(use for use in kept if use.hashes)
        self._num_names = sum(len(use.hashes) for use in self._uses)

    def _first_own(self, use: _Use) -> int:
        """Where the tail begins that was not used since."""
        low, high = 0, len(use.hashes)
        while low < high:
            middle = (low + high) // 2
            if self._used.get(use.hashes[middle]) == use.time:
                high = middle
            else:
                low = middle + 1
        return low
