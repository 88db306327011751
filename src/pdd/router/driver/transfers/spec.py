"""What a transfer moves, how patient it is, and who is told."""

from __future__ import annotations

from dataclasses import dataclass

from pdd.core.blocks import BlockHash
from pdd.core.ids import NodeId
from pdd.core.request import Role, SendClass
from pdd.core.view import Site
from pdd.protocol.delivery_messages import DeliveryLimits, DeliverySpec
from pdd.router.driver.bounds.settings import DriverSettings
from pdd.router.driver.workers.worker import Worker


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
    def crosses_line(self) -> bool:
        return self.source.cluster != self.target.cluster

    @property
    def delivery(self) -> DeliverySpec:
        """The same without what only the driver knows."""
        source, target = self.nodes
        return DeliverySpec(
            name=self.name,
            source=source,
            target=target,
            hashes=self.hashes,
            reserve_blocks=self.reserve_blocks,
            send_class=self.send_class,
        )


def delivery_limits(settings: DriverSettings) -> DeliveryLimits:
    """What the driver's settings say about deliveries."""
    return DeliveryLimits(
        node_patience=settings.node_patience,
        source_patience=settings.source_patience,
        link_patience=settings.link_patience,
        max_queue_patience=settings.max_queue_patience,
        spare_patience=settings.spare_patience,
        capacity_patience=settings.capacity_patience,
        max_queue=settings.admission.max_queue_s,
        node_retry=settings.node_retry,
        retry_after=settings.retry_after,
    )
