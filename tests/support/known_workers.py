"""Workers and the books of their nodes as beliefs see them: names and numbers, nothing that could be reached."""

from __future__ import annotations

from dataclasses import dataclass

from pdd.core.ids import NodeId, NodeInstance, WorkerId
from pdd.core.replication import NodeStats
from pdd.core.request import Role
from pdd.core.units import Bytes
from pdd.core.view import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A ``belief.workers.KnownWorker`` and nothing else."""

    name: WorkerId
    role: Role
    site: Site
    max_batch: int


def known(name: str, role: Role = Role.MAIN_DECODE, *, node: str = "node", max_batch: int = 4) -> Known:
    """Main decode stands in cluster B, everybody else in A."""
    site = Site(node=NodeId(node), cluster="B" if role is Role.MAIN_DECODE else "A")
    return Known(name=WorkerId(name), role=role, site=site, max_batch=max_batch)


def books(
    node: str = "node", *, instance: str = "first", capacity: int = 100, reserved: int = 0, leased: int = 0
) -> NodeStats:
    return NodeStats(
        node=NodeId(node),
        instance=NodeInstance(instance),
        capacity_blocks=capacity,
        held_blocks=0,
        leased_blocks=leased,
        reserved_blocks=reserved,
        writing_blocks=0,
        orders=0,
        watches=0,
        block_bytes=Bytes(1),
        sent_bytes={},
        received_bytes={},
        evictions=0,
        digest_failures=0,
    )
