"""When a transfer has come to a standstill: nothing of it has arrived for longer than whoever it waits for may take."""

from __future__ import annotations

from typing import Protocol

from pdd.belief.links import Links
from pdd.belief.workers import Workers
from pdd.core.clock import Clock
from pdd.core.units import Seconds
from pdd.core.view import LinkView
from pdd.router.driver.settings import DriverSettings
from pdd.router.driver.workers.worker import Worker

_LOOK_EVERY = Seconds(2.0)
"""How often a transfer at least looks how long the queue before it is."""


class Subject(Protocol):
    """The transfer, as far as its patience depends on it."""

    @property
    def settled(self) -> bool: ...

    @property
    def refused(self) -> bool:
        """It waits for room at its target, which has a patience of its own."""
        ...

    @property
    def demoted(self) -> bool:
        """It gets only what the line has to spare."""
        ...

    @property
    def informed(self) -> bool:
        """Its target has said what it lacks."""
        ...


class Standstill:
    """One per transfer. ``moved`` whenever something arrives; ``come`` once, when every block should be at the source."""

    def __init__(
        self,
        source: Worker,
        target: Worker,
        *,
        workers: Workers[Worker],
        links: Links,
        clock: Clock,
        settings: DriverSettings,
    ) -> None:
        self._source = source
        self._target = target
        self._workers = workers
        self._links = links
        self._clock = clock
        self._settings = settings
        self._moved_at = clock.now()

    @property
    def idle(self) -> Seconds:
        """How long nothing has arrived."""
        return Seconds(self._clock.now() - self._moved_at)

    def moved(self) -> None:
        """Something has arrived, or something else has begun to be waited for."""
        self._moved_at = self._clock.now()

    async def come(self, transfer: Subject) -> bool:
        """Waits for the standstill, then True; False when the transfer is settled before."""
        waiting_since, queue_patience = self._moved_at, Seconds(0.0)
        while not transfer.settled:
            if self._moved_at != waiting_since:
                waiting_since, queue_patience = self._moved_at, Seconds(0.0)
            # The longest queue since the last block counts: it shrinks while this transfer waits for its turn.
            forecast = self._links.view(self._source.site, self._target.site, self._clock.now())
            queue_patience = max(queue_patience, self._queue_patience(forecast))
            left = self._patience_left(transfer, queue_patience, forecast)
            if left <= 0 and not transfer.refused:
                return True
            overslept = await self._sleep_or_longer(max(self._settings.node_retry, min(left, _LOOK_EVERY)))
            if overslept > self._settings.node_retry:  # this process did not run: what arrived has yet to be read
                self._moved_at = Seconds(self._moved_at + overslept)
                waiting_since = self._moved_at
        return False

    async def _sleep_or_longer(self, time: Seconds) -> Seconds:
        """How much longer."""
        asleep_at = self._clock.now()
        await self._clock.sleep(time)
        return Seconds(self._clock.now() - asleep_at - time)

    def _patience_left(self, transfer: Subject, queue_patience: Seconds, forecast: LinkView) -> Seconds:
        """Until nothing has arrived for too long, of nobody; or until others were served and this one passed over for too long."""
        settings, now = self._settings, self._clock.now()
        line_moved_at = max(self._moved_at, self._links.moved_at(self._source.site, self._target.site))
        if transfer.demoted:
            # Others go first, also of its own class: that it gets nothing says nothing while the line delivers anything.
            has_work = forecast.backlog + forecast.background_backlog > 0
            patience = settings.line_patience if has_work or not transfer.informed else settings.source_patience
            return Seconds(min(line_moved_at + patience, self._moved_at + settings.spare_patience) - now)
        if self._source.node.node == self._target.node.node:
            # Nothing is under way: a block that is not there by now was lost, or never kept.
            return Seconds(self._moved_at + settings.room_patience - now)
        if self._workers.node_is_late(self._source.node.node, self._clock.now()):
            return Seconds(self._moved_at + settings.source_patience - now)
        node_patience = settings.source_patience if transfer.informed else settings.node_patience
        line_patience = settings.line_patience if forecast.backlog > 0 else node_patience
        own_patience = max(node_patience, queue_patience, line_patience)
        return Seconds(min(line_moved_at + line_patience, self._moved_at + own_patience) - now)

    def _queue_patience(self, forecast: LinkView) -> Seconds:
        """Others may be served first, but not for longer than twice all that the line owes."""
        queue_s = forecast.backlog / forecast.measured_rate if forecast.measured_rate else 0.0
        return Seconds(min(2 * queue_s, self._settings.max_queue_patience))
