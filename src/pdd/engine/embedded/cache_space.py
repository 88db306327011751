"""Gives sequences their cache blocks: from the engine's own cache, else from the node, else empty ones to be computed.

Satisfies ``policy.batching.CacheSpace``. Books and copies only; runs on the compute thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pdd.core.blocks import BlockHash
from pdd.engine.embedded.block_pool import BlockPool
from pdd.engine.embedded.exchange import NodeExchange
from pdd.engine.embedded.sequence import EngineSequence
from pdd.engine.node_link import OfferedBlocks


class CacheSpaceOfSequences:
    """The owner of every sequence's ``block_table`` and ``num_computed_tokens``."""

    __slots__ = ("_block_tokens", "_exchange", "_pool")

    def __init__(self, pool: BlockPool, exchange: NodeExchange | None, *, block_tokens: int) -> None:
        self._pool = pool
        self._exchange = exchange
        self._block_tokens = block_tokens

    def admit(self, sequence: EngineSequence) -> bool:
        # At least the last known token is always computed: its logits are wanted.
        hashes = sequence.hashes[: (sequence.num_tokens - 1) // self._block_tokens]
        own = self._pool.lookup(hashes)
        self._pool.hold(own)
        fresh = self._allocate(self._num_blocks(sequence.num_tokens) - len(own), num_own=len(own))
        if fresh is None:
            self._pool.release(own)
            return False
        sequence.block_table = [*own, *fresh]
        num_imported = self._import(hashes[len(own) :], fresh)
        sequence.num_computed_tokens = (len(own) + num_imported) * self._block_tokens
        self.offer([sequence])
        return True

    def grow(self, sequence: EngineSequence, num_tokens: int) -> bool:
        missing = self._num_blocks(num_tokens) - len(sequence.block_table)
        if missing <= 0:
            return True
        blocks = self._pool.allocate(missing)
        if blocks is None:
            return False
        sequence.block_table.extend(blocks)
        return True

    def release(self, sequence: EngineSequence) -> None:
        self._pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
        sequence.offered = OfferedBlocks()

    def advance(self, sequence: EngineSequence, num_tokens: int) -> None:
        """Counts ``num_tokens`` more tokens as computed and names the blocks which that filled, for others to reuse."""
        first = sequence.num_computed_tokens // self._block_tokens
        sequence.num_computed_tokens += num_tokens
        for index in range(first, sequence.num_computed_tokens // self._block_tokens):
            self._pool.publish(sequence.block_table[index], sequence.hashes[index])

    def offer(self, sequences: Sequence[EngineSequence]) -> None:
        """Exports the full blocks of these sequences that the node was not offered before.

        Those that were hits here too: others load from the node, which may have evicted what this cache still has. A
        node that was lost and found is offered everything again, else what waits there for the first block waits for
        ever.
        """
        if self._exchange is None:
            return
        epoch = self._exchange.export(partial(self._not_offered, sequences))
        if epoch is not None:
            for sequence in sequences:
                sequence.offered.mark(sequence.num_computed_tokens // self._block_tokens, epoch=epoch)

    def _allocate(self, count: int, *, num_own: int) -> tuple[int, ...] | None:
        # One more must be left unless nobody else is here, else the next block of anyone costs a preemption.
        slack = 1 if self._pool.stats().num_held > num_own else 0
        if self._pool.num_available < count + slack:
            return None
        return self._pool.allocate(count)

    def _import(self, hashes: Sequence[BlockHash], blocks: Sequence[int]) -> int:
        if self._exchange is None:
            return 0
        num_imported = self._exchange.import_prefix(hashes, blocks)
        for block_hash, block in zip(hashes[:num_imported], blocks, strict=False):
            self._pool.publish(block, block_hash)
        return num_imported

    def _not_offered(self, sequences: Sequence[EngineSequence], epoch: int) -> dict[BlockHash, int]:
        block_of_hash: dict[BlockHash, int] = {}
        for sequence in sequences:
            full = slice(sequence.offered.count(epoch), sequence.num_computed_tokens // self._block_tokens)
            block_of_hash.update(zip(sequence.hashes[full], sequence.block_table[full], strict=True))
        return block_of_hash

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_tokens)
