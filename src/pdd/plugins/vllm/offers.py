"""Which blocks of running sequences the node was offered, in which of its lives, and the offering of the others.

The books follow ``SaveOrder`` and ``StepOrders.forgotten``. A node that was lost and found is offered everything of
every running sequence again, else what waits there for the first block waits for ever. Nothing is offered but in steps
with new orders: all ranks of an engine then know, without asking, that there is something to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdd.core.blocks import BlockHash
from pdd.engine.node_link import NodeLink, OfferedBlocks
from pdd.plugins.vllm.orders import SaveOrder, StepOrders


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedBlock:
    """Wire block number ``block`` of a sequence, whose KV is in ``cache_blocks``: the sequence's, from its start."""

    block: int
    cache_blocks: tuple[int, ...]


class _Running:
    __slots__ = ("cache_blocks", "hashes", "offered")

    def __init__(self) -> None:
        self.hashes: list[BlockHash] = []
        self.cache_blocks: tuple[int, ...] = ()
        self.offered = OfferedBlocks()


class Offers:
    """The running sequences' blocks, on the rank that offers them."""

    __slots__ = ("_link", "_running")

    def __init__(self, link: NodeLink) -> None:
        self._link = link
        self._running: dict[str, _Running] = {}

    @property
    def num_running(self) -> int:
        return len(self._running)

    def make(self, orders: StepOrders, fill: Callable[[CachedBlock, memoryview], None]) -> None:
        """Once a step, whether or not it saves anything.

        ``fill`` is called for blocks that the node lacks, perhaps twice.
        """
        for request_id in orders.forgotten:
            self._running.pop(request_id, None)
        if not orders.saves:
            return
        for order in orders.saves:
            self._extend(order)
        if any(order.first_block == 0 for order in orders.saves):
            self._link.look()  # a sequence begins, and perhaps ends with this step
        epoch = self._link.offer(self._not_offered, fill)
        if epoch is not None:
            for running in self._running.values():
                running.offered.mark(len(running.hashes), epoch=epoch)

    def _extend(self, order: SaveOrder) -> None:
        running = self._running.setdefault(order.request_id, _Running())
        running.hashes.extend(order.hashes)
        running.cache_blocks = order.cache_blocks

    def _not_offered(self, epoch: int) -> dict[BlockHash, CachedBlock]:
        return {
            block_hash: CachedBlock(block=number, cache_blocks=running.cache_blocks)
            for running in self._running.values()
            for number, block_hash in _from(running.hashes, running.offered.count(epoch))
        }


def _from(hashes: Sequence[BlockHash], first: int) -> Sequence[tuple[int, BlockHash]]:
    return [(number, hashes[number]) for number in range(first, len(hashes))]
