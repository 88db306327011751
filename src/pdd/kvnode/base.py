"""What the router needs of a KV node: standing replication orders at a source, readiness watches at a target.

Engines use another door, the local one (``kvnode.local``): leases, writes and the mapped arena.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId, NodeInstance, OrderId, PinId, WatchId
from pdd.core.request import SendClass
from pdd.core.units import Bytes, BytesPerSecond


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOrder:
    """Standing order to a source node: send ``hashes`` to ``target`` as each of them appears here.

    Given before prefill begins; blocks that the target lacks follow in order, those it has or is already being sent are
    skipped. It stands until every block is at the target, it is cancelled, it fails, or the router's connection ends.
    Its ``send_class`` can be changed later (``NodeClient.reclassify``).
    """

    order: OrderId
    target: NodeId
    hashes: tuple[BlockHash, ...]
    send_class: SendClass = SendClass.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationProgress:
    """Where an order stands at its source.

    ``num_missing`` is how many of its blocks the target said it lacks (None until it has answered);
    ``num_acknowledged`` of those have been confirmed by the target. ``rate`` is the acknowledged rate to this peer over
    the last seconds, both classes together (None before anything was acknowledged). ``backlog`` is what all orders of the
    normal class together still have to send to this peer, ``background_backlog`` what the others have.
    """

    order: OrderId
    num_missing: int | None
    num_acknowledged: int
    sent_bytes: Bytes
    rate: BytesPerSecond | None
    backlog: Bytes
    done: bool
    background_backlog: Bytes = Bytes(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Asks a target node to report how much of ``hashes`` it holds, and to keep it.

    With it goes an all-or-nothing reservation of ``reserve_blocks`` slots (prompt and output budget): blocks of
    this watch that it already holds count towards it. Everything is released when the watch ends.
    """

    watch: WatchId
    hashes: tuple[BlockHash, ...]
    reserve_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The first ``num_ready`` blocks of the watch are held, leased and checked. It never decreases within a watch."""

    watch: WatchId
    num_ready: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Asks a node to evict others before ``hashes``: a conversation lives, and its next turn begins with them.

    A pin promises nothing else: blocks that the node does not hold are pinned when they arrive, and when only pinned ones
    could be evicted, those of the oldest pin are. So it never makes a reservation fail.
    """

    pin: PinId
    hashes: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """A node's books, for metrics, ``pdd status`` and leak checks."""

    node: NodeId
    instance: NodeInstance
    capacity_blocks: int
    held_blocks: int
    leased_blocks: int
    reserved_blocks: int
    writing_blocks: int
    orders: int
    watches: int
    block_bytes: Bytes
    sent_bytes: dict[str, int]
    """Block payload sent, by peer node."""
    received_bytes: dict[str, int]
    """Block payload received, by peer node."""
    evictions: int
    digest_failures: int
    pinned_blocks: int = 0


class NodeClient(Protocol):
    """One KV node, as seen by the router. Implementations: ``kvnode.client`` (TCP), ``kvnode.memory`` (tests, simulator)."""

    @property
    def node(self) -> NodeId: ...

    def replicate(self, order: ReplicationOrder) -> AsyncGenerator[ReplicationProgress]:
        """Places a standing order and streams its progress: at once, soon after it changed, and a last one with ``done``.

        Closing the generator leaves the order standing; ``cancel`` ends it.

        Raises:
            NodeFailed: the source or the target is gone and stayed gone.
            BlocksLost: a block that the target lacks was evicted at the source before it was sent, or found no room there.
            Incompatible: the target holds another KV format.
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
