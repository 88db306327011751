"""Where requests wait for a place: bounded, fair between tenants, and never in silence for ever.

A request gets a place at once, or stands in line for at most ``admission.max_queue_s``, or is turned away with the time
after which it should come back. Whoever leaves, from a place or from the line, makes room for the next at that moment.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from pdd.core.clock import Clock
from pdd.core.errors import CapacityExhausted, PddError, TenantOverLimit, Unavailable
from pdd.core.ids import TenantId
from pdd.core.units import Seconds
from pdd.policy.admission import DrainRate, Entry, FairLine, RetryAdvice, ShedReason
from pdd.router.base import TokenRequest
from pdd.router.driver.bounds.settings import DriverSettings


class Place:
    """A request's, or its position in the line until it is called. Give it back with ``WaitingRoom.leave``."""

    def __init__(self, entry: Entry, entered_at: Seconds) -> None:
        self.entry = entry
        self.entered_at = entered_at
        self.over = asyncio.Event()
        """Waiting is: the request was called, or it has left."""


class WaitingRoom:
    """One per router."""

    def __init__(self, settings: DriverSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._line = FairLine(
            num_places=settings.max_open_requests,
            max_waiting=settings.admission.max_queued_requests,
            weights=settings.tenant_weights,
        )
        self._drain = DrainRate()
        self._advice = RetryAdvice(self._drain, unmeasured=settings.admission.max_queue_s)
        self._waiting: dict[Entry, Place] = {}
        self._shed: Counter[ShedReason] = Counter()

    @property
    def num_running(self) -> int:
        """Requests that have a place."""
        return self._line.num_running

    @property
    def num_waiting(self) -> int:
        return self._line.num_waiting

    @property
    def shed(self) -> Mapping[ShedReason, int]:
        """How many requests were turned away so far."""
        return self._shed

    def enter(self, request: TokenRequest) -> Place:
        """Takes a place or stands in line: ``wait`` tells.

        Raises:
            CapacityExhausted: the line is full, or its turn would not come in time.
            TenantOverLimit: this tenant's share of it is.
        """
        entry = Entry(request.tenant, cost_of(request))
        reason = self._line.why_not(request.tenant) or self._why_not_in_time(entry)
        if reason is not None:
            raise self._turned_away(reason, entry)
        place = Place(entry, self._clock.now())
        self._line.enter(entry)
        if self._line.runs(entry):
            place.over.set()
        else:
            self._waiting[entry] = place
        self._drain.record(self._clock.now(), completed=0, loaded=self._line.is_saturated)
        return place

    def has_place(self, place: Place) -> bool:
        """Whether the request was called, and has not left since."""
        return self._line.runs(place.entry)

    async def wait(self, place: Place) -> None:
        """Until the request has its place, or has left.

        Raises:
            CapacityExhausted: it has waited for too long.
        """
        limit = self._settings.admission.max_queue_s
        try:
            async with asyncio.timeout(None if place.over.is_set() else limit):
                await place.over.wait()
        except TimeoutError:
            if not self.has_place(place):
                raise self._turned_away(ShedReason.QUEUE_TIMEOUT, place.entry) from None

    def leave(self, place: Place) -> None:
        """The request is over, or waits no more. Idempotent."""
        completed = place.entry.cost if self.has_place(place) else 0
        called = self._line.leave(place.entry)
        self._drain.record(self._clock.now(), completed=completed, loaded=self._line.is_saturated)
        self._waiting.pop(place.entry, None)
        place.over.set()
        if called is not None:
            self._waiting.pop(called).over.set()

    def retry_after(self) -> Seconds:
        """What a client is told that can't be served for another reason than a full line."""
        backlog = self._line.waiting_cost
        least = self._settings.retry_after
        return max(least, self._advice.wait_for(backlog)) if backlog else least

    def advised(self, error: PddError) -> PddError:
        """The same error for a client: a node or an engine that had no room does not know how long the line is."""
        if not isinstance(error, CapacityExhausted):
            return error
        self._shed[ShedReason.NO_ROOM] += 1
        return CapacityExhausted(error.message, retry_after_s=max(error.retry_after_s, self.retry_after()))

    def nobody_is_up(self, message: str) -> Unavailable:
        """Turns a request away because there is nobody to serve it."""
        self._shed[ShedReason.NO_WORKER] += 1
        return Unavailable(message, retry_after_s=self.retry_after())

    def _why_not_in_time(self, entry: Entry) -> ShedReason | None:
        """It is better to be turned away at once than after having waited.

        Its own cost stands for the place it waits for.
        """
        rate = self._drain.per_second
        if rate is None or not self._line.is_saturated:
            return None
        wait = (self._line.cost_ahead_of(entry.tenant) + entry.cost) / rate
        return None if wait <= self._settings.admission.max_queue_s else ShedReason.QUEUE_TOO_LONG

    def _turned_away(self, reason: ShedReason, entry: Entry) -> CapacityExhausted:
        self._shed[reason] += 1
        full = reason is ShedReason.QUEUE_FULL
        ahead = self._line.waiting_cost if full else self._line.cost_ahead_of(entry.tenant)
        retry_after = self._advice.take_turn(self._clock.now(), ahead=ahead, cost=entry.cost)
        kind = TenantOverLimit if reason is ShedReason.TENANT_LIMIT else CapacityExhausted
        return kind(self._message(reason, entry.tenant), retry_after_s=retry_after)

    def _message(self, reason: ShedReason, tenant: TenantId) -> str:
        limit = self._settings.admission.max_queue_s
        match reason:
            case ShedReason.TENANT_LIMIT:
                return f"{self._line.max_waiting_of(tenant)} requests of this tenant wait, its share of the queue"
            case ShedReason.QUEUE_TOO_LONG:
                return f"{self._line.num_waiting} requests wait: a place would not become free within {limit:g} s"
            case ShedReason.QUEUE_TIMEOUT:
                return f"no place became free within {limit:g} s"
            case _:
                return f"{self.num_running} requests are being served and {self.num_waiting} wait, the limit"


def cost_of(request: TokenRequest) -> int:
    """What a request weighs, in tokens: its prompt, and all that it may be answered."""
    return len(request.prompt) + request.max_tokens
