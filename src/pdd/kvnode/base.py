"""What the router needs of a KV node: standing replication orders at a source, readiness watches at a target.

Engines use another door, the local one (``kvnode.local``): leases, writes and the mapped arena.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from pdd.core.ids import NodeId, OrderId, PinId
from pdd.core.replication import NodeStats, Pin, Readiness, ReplicationOrder, ReplicationProgress, Watch
from pdd.core.request import SendClass


class NodeClient(Protocol):
    """One KV node, as seen by the router.

    Implementations: ``kvnode.client`` (TCP), ``sim.memory.node`` (tests, simulator).
    """

    @property
    def node(self) -> NodeId: ...

    def replicate(self, order: ReplicationOrder) -> AsyncGenerator[ReplicationProgress]:
        """Places a standing order and streams its progress: at once, soon after it changed, and a last one with
        ``done``.

        Closing the generator leaves the order standing; ``cancel`` ends it.

        Raises:
            NodeFailed: the source or the target is gone and stayed gone. BlocksLost: a block that the target lacks was
            evicted at the source before it was sent, or found no room there. Incompatible: the target holds another KV
            format.
        """
        ...

    async def cancel(self, order: OrderId) -> None:
        """Ends an order; unknown or ended orders are ignored. Blocks already at the target stay there."""
        ...

    async def reclassify(self, order: OrderId, send_class: SendClass) -> None:
        """The order goes on in another class; unknown or ended orders are ignored.

        Raises NodeFailed: the node is gone, and the order with it.
        """
        ...

    def watch(self, watch: Watch) -> AsyncGenerator[Readiness]:
        """Reserves, leases and reports: at once, at once when all blocks are ready, and soon after ``num_ready`` grew.

        Closing the generator releases it.

        Raises:
            CapacityExhausted: the reservation can't be met now.
            ContextTooLong: it could never be met by this arena.
            NodeFailed: the node is gone; its reservation and leases are gone with it.
        """
        ...

    async def pin(self, pin: Pin) -> None:
        """Pins blocks, until ``unpin``; a pin of the same name is replaced. It ends with this router's connection too.

        Raises NodeFailed: the node is gone.
        """
        ...

    async def unpin(self, pin: PinId) -> None:
        """Ends a pin: its blocks are the next to be evicted. Unknown ones are ignored, as is a node that is gone."""
        ...

    async def stats(self) -> NodeStats:
        """Asks for the node's books; also the health check.

        Raises:
            NodeFailed: the node does not answer.
            Incompatible: it answers, but with another KV format, name or version than this router's.
        """
        ...
