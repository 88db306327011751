"""Deliveries that outlived their requests: which of them gives way where others need what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdd.core.ids import NodeId
from pdd.core.replication import NodeStats

SHORT_OF_CAPACITY = 0.75
"""So full of what may not be evicted, a node keeps nothing for deliveries that nobody waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedView:
    """A delivery without a request. ``nodes``: where it holds something; ``demoted``: nobody waits for it."""

    nodes: tuple[NodeId, NodeId]
    demoted: bool


def is_short_of_capacity(stats: NodeStats | None) -> bool:
    """By what the node said last: what is leased or promised can't be evicted, so little is left for newcomers."""
    if stats is None:
        return False
    taken = stats.leased_blocks + stats.reserved_blocks + stats.writing_blocks
    return taken > SHORT_OF_CAPACITY * stats.capacity_blocks


def choose_surplus(detached: Sequence[DetachedView], *, limit: int) -> int | None:
    """Of too many the oldest ends, of those that nobody waits for if there are. ``detached`` is in order of age."""
    if len(detached) <= limit:
        return None
    return next((index for index, view in enumerate(detached) if view.demoted), 0)


def choose_spare(detached: Sequence[DetachedView], node: NodeId) -> int | None:
    """The oldest from or to ``node`` that nobody waits for: its conversation rests longest."""
    return next((index for index, view in enumerate(detached) if view.demoted and node in view.nodes), None)
