# pyright: basic
"""Moves KV between one rank's cache and the engine's KV node, as the scheduler's side has ordered: the connector's
other half.

Loads: every rank reads the node's blocks for itself, on threads, and takes the heads that it holds. Saves: on the
worker's own thread when a step's forward pass is done, before the cache can change again; the first rank alone offers,
and for each block that the node lacks all ranks' heads are gathered there. A rank knows from its orders whether there
is something to gather.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Protocol

from torch import Tensor

from pdd.engine.node_link import NodeLink
from pdd.plugins.vllm.layouts.base import CacheLayout
from pdd.plugins.vllm.layouts.canonical import WireBlocks
from pdd.plugins.vllm.loads import EndedLoads, Loads
from pdd.plugins.vllm.offers import CachedBlock, Offers
from pdd.plugins.vllm.orders import LoadOrder, StepOrders


class Ranks(Protocol):
    """The ranks of one engine, among which attention heads are divided. All call the same in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def announce(self, block: CachedBlock | None) -> CachedBlock | None:
        """The first rank's ``block``, on every rank."""
        ...

    def gather(self, content: Tensor) -> Sequence[Tensor]:
        """Every rank's ``content``, on the first; nothing on the others."""
        ...


class SingleRank:
    """An engine that isn't divided."""

    rank = 0
    size = 1

    def announce(self, block: CachedBlock | None) -> CachedBlock | None:
        return block

    def gather(self, content: Tensor) -> Sequence[Tensor]:
        return (content,)


class WorkerSide:
    """One rank's. Each step: ``start`` its orders, ``save`` when the forward pass is done, then ``take_ended``."""

    __slots__ = ("_layout", "_link", "_loads", "_offers", "_ranks", "_wire")

    def __init__(
        self,
        wire: WireBlocks,
        layout: CacheLayout,
        link: NodeLink,
        make_loader_link: Callable[[], NodeLink],
        *,
        ranks: Ranks,
        num_loader_threads: int,
    ) -> None:
        """Raises Incompatible: the node holds blocks of another KV format."""
        self._wire = wire
        self._layout = layout
        self._ranks = ranks
        self._link = link
        self._link.connect()
        self._offers = Offers(self._link)
        self._loads = Loads(
            make_loader_link,
            self._write,
            block_tokens=wire.block_tokens,
            cache_block_tokens=layout.block_tokens,
            num_threads=num_loader_threads,
        )

    def start(self, orders: StepOrders) -> None:
        """Starts the loads."""
        for order in orders.loads:
            self._loads.start(order)

    def save(self, orders: StepOrders) -> None:
        """Offers what this step has filled; when it returns, the cache may change."""
        if self._ranks.rank != 0:
            if orders.saves:
                self._follow_gathers()
            return
        try:
            self._offers.make(orders, self._fill)
        finally:
            if orders.saves:
                self._ranks.announce(None)

    def take_ended(self) -> EndedLoads:
        return self._loads.take_ended()

    def close(self) -> None:
        with closing(self._link):
            self._loads.close()

    def _follow_gathers(self) -> None:
        while (block := self._ranks.announce(None)) is not None:
            self._ranks.gather(self._read(block))

    def _fill(self, block: CachedBlock, target: memoryview) -> None:
        self._ranks.announce(block)
        self._wire.encode(self._wire.heads.merge(self._ranks.gather(self._read(block))), target)

    def _read(self, block: CachedBlock) -> Tensor:
        return self._layout.read(block.cache_blocks, block.block * self._wire.block_tokens, self._wire.block_tokens)

    def _write(self, order: LoadOrder, block: int, content: memoryview) -> None:
        start = block * self._wire.block_tokens
        first = max(order.first_token, start)
        end = min(order.end_token, start + self._wire.block_tokens)
        tokens = self._wire.decode(content)[:, first - start : end - start]
        self._layout.write(order.cache_blocks, first, tokens)
