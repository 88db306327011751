"""Blocks between the engine's own cache and its local KV node. Runs on the compute thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pdd.core.blocks import BlockHash
from pdd.engine.node_link import NodeLink


class BlockBytes(Protocol):
    """The engine's side of a copy."""

    def read_block(self, block: int, target: memoryview, /) -> None: ...

    def write_block(self, block: int, source: memoryview, /) -> None: ...


class NodeExchange:
    """Imports and exports blocks by name. None of its methods but ``connect`` fails for the node's sake."""

    __slots__ = ("_bytes", "_link")

    def __init__(self, link: NodeLink, block_bytes: BlockBytes) -> None:
        self._link = link
        self._bytes = block_bytes

    @property
    def connected(self) -> bool:
        return self._link.connected

    @property
    def num_imported(self) -> int:
        return self._link.num_read

    @property
    def num_exported(self) -> int:
        return self._link.num_written

    def connect(self) -> None:
        """See ``NodeLink.connect``. Raises Incompatible."""
        self._link.connect()

    def import_prefix(self, hashes: Sequence[BlockHash], blocks: Sequence[int]) -> int:
        """Copies the longest prefix of ``hashes`` that the node holds into ``blocks``; returns how many that were.

        What is in the blocks after those is undefined.
        """
        return self._link.read_prefix(hashes, lambda index, content: self._bytes.write_block(blocks[index], content))

    def export(self, choose: Callable[[int], Mapping[BlockHash, int]]) -> int | None:
        """Copies those of the blocks ``choose(epoch)`` to the node that it lacks; see ``NodeLink.offer``."""
        return self._link.offer(choose, self._bytes.read_block)

    def close(self) -> None:
        self._link.close()
