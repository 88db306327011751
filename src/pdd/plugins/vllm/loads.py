"""Loads blocks from the node on threads of their own, while the engine computes.

Each thread has its own link to the node. What can't be loaded, for whatever reason, is reported as failed: vLLM
computes it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pdd.engine.node_link import NodeLink
from pdd.plugins.vllm.orders import LoadOrder

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedLoads:
    """``failed_blocks`` are the cache blocks of these requests from the first that could not be filled on."""

    request_ids: frozenset[str] = frozenset()
    failed_blocks: frozenset[int] = frozenset()


WriteBlock = Callable[[LoadOrder, int, memoryview], None]
"""Copies wire block number ``int`` of the sequence into the order's cache blocks. Called on any of the threads."""


class Loads:
    """Every load that was started is reported once, by ``take_ended``."""

    __slots__ = ("_block_tokens", "_cache_block_tokens", "_ended", "_failed", "_lock", "_orders", "_threads", "_write")

    def __init__(
        self,
        make_link: Callable[[], NodeLink],
        write: WriteBlock,
        *,
        block_tokens: int,
        cache_block_tokens: int,
        num_threads: int,
    ) -> None:
        self._write = write
        self._block_tokens = block_tokens
        self._cache_block_tokens = cache_block_tokens
        self._orders: queue.SimpleQueue[LoadOrder | None] = queue.SimpleQueue()  # vLLM starts what it has blocks for
        self._lock = threading.Lock()
        self._ended: set[str] = set()
        self._failed: set[int] = set()
        self._threads = [
            threading.Thread(target=self._work, args=(make_link(),), name=f"pdd-kv-load-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, order: LoadOrder) -> None:
        self._orders.put(order)

    def take_ended(self) -> EndedLoads:
        """The loads that ended since the last call."""
        with self._lock:
            ended = EndedLoads(request_ids=frozenset(self._ended), failed_blocks=frozenset(self._failed))
            self._ended.clear()
            self._failed.clear()
        return ended

    def close(self) -> None:
        """Waits for the loads that were started."""
        for _ in self._threads:
            self._orders.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, link: NodeLink) -> None:
        with contextlib.closing(link):
            while (order := self._orders.get()) is not None:
                num_loaded = 0
                try:
                    num_loaded = self._load(link, order)
                except Exception:
                    _logger.exception("kv_load_failed request=%s", order.request_id)
                self._report(order, num_loaded)

    def _load(self, link: NodeLink, order: LoadOrder) -> int:
        return link.read_prefix(
            order.hashes, lambda index, content: self._write(order, order.first_block + index, content)
        )

    def _report(self, order: LoadOrder, num_loaded: int) -> None:
        failed: tuple[int, ...] = ()
        if num_loaded < len(order.hashes):
            first_lacking = max((order.first_block + num_loaded) * self._block_tokens, order.first_token)
            # Of the block which begins before first_token the rest alone is to be computed, but vLLM counts whole
            # blocks.
            first = first_lacking // self._cache_block_tokens
            end = -(-order.end_token // self._cache_block_tokens)
            failed = order.cache_blocks[first:end]
            _logger.info(
                "kv_load_incomplete request=%s loaded=%d wanted=%d", order.request_id, num_loaded, len(order.hashes)
            )
        with self._lock:
            self._ended.add(order.request_id)
            self._failed.update(failed)
