"""When a delivery has come to a standstill: nothing of it has arrived for longer than whoever it waits for may take."""

from __future__ import annotations

from dataclasses import dataclass

from pdd.core.units import Seconds
from pdd.core.view import LinkView
from pdd.protocol.delivery_messages import DeliveryLimits, StandstillDue

LOOK_EVERY = Seconds(2.0)
"""How often a delivery at least looks how long the queue before it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stance:
    """The delivery, as far as its patience depends on it."""

    demoted: bool
    """It gets only what the link has to spare."""
    informed: bool
    """Its target has said what it lacks."""
    is_local: bool
    """Source and target are the same node."""


class Standstill:
    """One per delivery.

    ``moved`` whenever something arrives; ``look`` from when every block should be at the source.
    """

    def __init__(self, limits: DeliveryLimits) -> None:
        self._limits = limits
        self._moved_at = Seconds(0.0)
        self._queue_patience = Seconds(0.0)
        self._due_at: Seconds | None = None

    def idle(self, now: Seconds) -> Seconds:
        """How long nothing has arrived."""
        return Seconds(now - self._moved_at)

    def moved(self, now: Seconds) -> None:
        """Something has arrived, or something else has begun to be waited for."""
        self._moved_at, self._queue_patience = now, Seconds(0.0)

    def look(self, due: StandstillDue, stance: Stance) -> Seconds:
        """How much patience is left; ``again_after`` says when to look again."""
        self._make_good(due.at)
        # The longest queue since the last block counts: it shrinks while this delivery waits for its turn.
        self._queue_patience = max(self._queue_patience, self._patience_with_queue(due.link))
        return self._left(due, stance)

    def again_after(self, left: Seconds, now: Seconds) -> Seconds:
        """Looks again at the latest when nothing is left."""
        delay = max(self._limits.node_retry, min(left, LOOK_EVERY))
        self._due_at = Seconds(now + delay)
        return delay

    def _make_good(self, now: Seconds) -> None:
        """If it looks too late, this process did not run: what arrived has yet to be read."""
        late_by = Seconds(0.0 if self._due_at is None else now - self._due_at)
        if late_by > self._limits.node_retry:
            self._moved_at = Seconds(self._moved_at + late_by)

    def _left(self, due: StandstillDue, stance: Stance) -> Seconds:
        """Until nothing has arrived for too long, of nobody; or until others were served and this one passed over for
        too long.
        """
        limits, link = self._limits, due.link
        link_moved_at = max(self._moved_at, due.link_moved_at)
        if stance.demoted:
            # Others go first, also of its own class: that it gets nothing says nothing while the link delivers
            # anything.
            has_work = link.backlog + link.background_backlog > 0
            patience = limits.link_patience if has_work or not stance.informed else limits.source_patience
            return Seconds(min(link_moved_at + patience, self._moved_at + limits.spare_patience) - due.at)
        if stance.is_local:
            # Nothing is under way: a block that is not there by now was lost, or never kept.
            return Seconds(self._moved_at + limits.capacity_patience - due.at)
        if due.source_is_late:
            return Seconds(self._moved_at + limits.source_patience - due.at)
        node_patience = limits.source_patience if stance.informed else limits.node_patience
        link_patience = limits.link_patience if link.backlog > 0 else node_patience
        own_patience = max(node_patience, self._queue_patience, link_patience)
        return Seconds(min(link_moved_at + link_patience, self._moved_at + own_patience) - due.at)

    def _patience_with_queue(self, link: LinkView) -> Seconds:
        """Others may be served first, but not for longer than twice all that the link owes."""
        queue_s = link.backlog / link.measured_rate if link.measured_rate else 0.0
        return Seconds(min(2 * queue_s, self._limits.max_queue_patience))
