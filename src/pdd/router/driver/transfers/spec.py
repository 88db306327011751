"""What a transfer moves, and how far it has got."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId
from pdd.core.request import Role
from pdd.router.driver.workers.worker import Worker


class TransferState(Enum):
    """Where a transfer is. REFUSED: the target has no room now and is being asked again."""

    PLACED = auto()
    REFUSED = auto()
    MOVING = auto()
    READY = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSpec:
    """What is moved. ``hashes`` is not empty; ``reserve_blocks`` covers prompt and output budget."""

    name: str
    attempt: int
    role: Role
    source: Worker
    target: Worker
    hashes: tuple[BlockHash, ...]
    reserve_blocks: int

    @property
    def nodes(self) -> tuple[NodeId, NodeId]:
        """At which it holds something."""
        return (self.source.node.node, self.target.node.node)

    @property
    def is_local(self) -> bool:
        """Both engines share a node: there is nothing to send."""
        return self.source.node.node == self.target.node.node

    @property
    def crosses_line(self) -> bool:
        return self.source.cluster != self.target.cluster
