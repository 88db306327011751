"""What a transfer moves, how far it has got, and who is told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId
from pdd.core.request import Role, SendClass
from pdd.core.view import Site
from pdd.router.driver.workers.worker import Worker

if TYPE_CHECKING:
    from pdd.router.driver.transfers.transfer import Transfer


class TransferState(Enum):
    """Where a transfer is. REFUSED: the target has no room now and is being asked again."""

    PLACED = auto()
    REFUSED = auto()
    MOVING = auto()
    READY = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSpec:
    """What is moved. ``hashes`` is not empty; ``reserve_blocks`` covers prompt and output budget.

    ``send_class`` is the one that it begins in.
    """

    name: str
    attempt: int
    role: Role
    source: Worker
    target: Worker
    hashes: tuple[BlockHash, ...]
    reserve_blocks: int
    send_class: SendClass = SendClass.NORMAL

    @property
    def nodes(self) -> tuple[NodeId, NodeId]:
        """At which it holds something."""
        return (self.source.node.node, self.target.node.node)

    @property
    def ends(self) -> tuple[Site, Site]:
        """Of the link that it goes over."""
        return (self.source.site, self.target.site)

    @property
    def is_local(self) -> bool:
        """Both engines share a node: there is nothing to send."""
        return self.source.node.node == self.target.node.node

    @property
    def crosses_line(self) -> bool:
        return self.source.cluster != self.target.cluster


class TransferListener(Protocol):
    """Whoever a transfer is made for. Nothing is told after ``release`` or ``detach``."""

    def on_change(self, transfer: Transfer) -> None:
        """Its ``state`` is another one."""
        ...

    def on_informed(self, transfer: Transfer) -> None:
        """Its target has said what it lacks: ``num_missing`` is known."""
        ...
