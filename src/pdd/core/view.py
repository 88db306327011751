"""What policies decide by: frozen records of links, workers, roles and one request, as they are believed to be.

``belief`` and the driver make them, ``policy`` reads them. They hold values only, and nothing in them changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdd.core.ids import NodeId
from pdd.core.units import Bytes, BytesPerSecond


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A KV node and the cluster that it stands in: one end of a link."""

    node: NodeId
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """A link's ``rate`` (None: nothing is known) and what everybody together still has to send over it.

    ``measured_rate`` leaves out that nothing has arrived for a while: patience that grew with the wait would never end.
    ``backlog`` is the normal class's, owed by ``num_orders`` orders; what is sent in the background (``background_backlog``)
    delays nobody.
    """

    rate: BytesPerSecond | None
    measured_rate: BytesPerSecond | None
    backlog: Bytes
    num_orders: int
    background_backlog: Bytes = Bytes(0)
