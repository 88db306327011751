"""What router and KV nodes say to each other: orders, watches, pins, and how these stand. ``kvnode.base`` says when."""

from __future__ import annotations

from dataclasses import dataclass

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
    the last seconds, both classes together (None before anything was acknowledged). ``backlog`` is what all orders of
    the normal class together still have to send to this peer, ``background_backlog`` what the others have.
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

    A pin promises nothing else: blocks that the node does not hold are pinned when they arrive, and when only pinned
    ones could be evicted, those of the oldest pin are. So it never makes a reservation fail.
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
