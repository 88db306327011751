"""Who is served next when not everybody can be, who may wait, and when those turned away should try again.

Weighted fair queueing: a tenant is charged (cost / weight) when one of its requests gets a place, and of the tenants
that wait the one that was charged least comes next. A tenant that was idle begins where the others are, so nobody saves
up credit; what leaves the line unserved costs nothing. Costs are tokens: a request's prompt and its output budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pdd.core.ids import TenantId
from pdd.core.request import Role
from pdd.core.units import Seconds
from pdd.core.view import RoleView

MIN_RETRY_AFTER = Seconds(1.0)
MAX_RETRY_AFTER = Seconds(60.0)
ALONE_LOAD = 0.9
"""While no main decode is up, answers go on at relay decode alone up to this load: those that it has begun come first.
"""
HALF_FORGOTTEN_AFTER = Seconds(15.0)
"""A completion counts half as much in the measured rate after so long under load."""
MEASURED_AFTER = Seconds(1.0)
"""Less time under load than this says nothing about a rate."""


def who_is_missing(roles: Mapping[Role, RoleView]) -> str | None:
    """Why no request could begin, or go on, now; None: one could."""
    if not roles[Role.PREFILL].up:
        return "no prefill worker is up"
    if not roles[Role.MAIN_DECODE].up and roles[Role.RELAY_DECODE].load >= ALONE_LOAD:
        return "no main decode worker is up, and relay decode has no room for whole answers"
    return None


class ShedReason(StrEnum):
    """Why a request was turned away before it began."""

    QUEUE_FULL = "queue_full"
    TENANT_LIMIT = "tenant_limit"
    QUEUE_TOO_LONG = "queue_too_long"
    """Its turn would not come within the time that requests may wait."""
    QUEUE_TIMEOUT = "queue_timeout"
    """Its turn was expected to come in time, and did not."""
    NO_ROOM = "no_room"
    """Main decode's node had no room for it in time."""
    NO_WORKER = "no_worker"


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One request in line, or at its place."""

    tenant: TenantId
    cost: int


@dataclass(slots=True)
class _Account:
    """One tenant's: ``charged`` is where it stands in virtual time."""

    weight: float
    charged: float
    num_running: int = 0
    waiting: deque[Entry] = field(default_factory=deque[Entry])

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.num_running


class FairLine:
    """``num_places`` requests run, up to ``max_waiting`` wait. A tenant that is not in ``weights`` has weight 1.

    Every request that was let in leaves once, from wherever it is.
    """

    def __init__(self, *, num_places: int, max_waiting: int, weights: Mapping[TenantId, float]) -> None:
        self._num_places = num_places
        self._max_waiting = max_waiting
        self._weights = weights
        self._accounts: dict[TenantId, _Account] = {}
        self._running: dict[Entry, None] = {}
        self._virtual_time = 0.0
        self.num_waiting = 0
        self.waiting_cost = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def is_saturated(self) -> bool:
        """Every place is taken."""
        return len(self._running) >= self._num_places

    def runs(self, entry: Entry) -> bool:
        return entry in self._running

    def why_not(self, tenant: TenantId) -> ShedReason | None:
        """What keeps ``tenant`` from entering now."""
        if not self.is_saturated:
            return None
        if self.num_waiting >= self._max_waiting:
            return ShedReason.QUEUE_FULL
        account = self._accounts.get(tenant)
        if account is not None and len(account.waiting) >= self.max_waiting_of(tenant):
            return ShedReason.TENANT_LIMIT
        return None

    def max_waiting_of(self, tenant: TenantId) -> int:
        """Its share of the line among the tenants that are configured or here; a sole tenant may have all of it."""
        known = {**dict.fromkeys(self._weights), **dict.fromkeys(self._accounts), tenant: None}
        share = self._weight(tenant) / sum(self._weight(each) for each in known)
        return max(1, int(self._max_waiting * share))

    def cost_ahead_of(self, tenant: TenantId) -> float:
        """What is served before a request that ``tenant`` would add to the end of its line, about.

        Its own requests, and of each other tenant's as much as is served beside these.
        """
        own = self._accounts.get(tenant)
        own_cost = 0 if own is None else _cost(own)
        per_weight = own_cost / self._weight(tenant)
        others = (account for name, account in self._accounts.items() if name != tenant)
        return own_cost + sum(min(_cost(account), per_weight * account.weight) for account in others)

    def enter(self, entry: Entry) -> None:
        """Takes a place, or the last position of its tenant's line. ``why_not`` said that it may."""
        if entry.tenant not in self._accounts:
            self._accounts[entry.tenant] = _Account(self._weight(entry.tenant), self._virtual_time)
        self._accounts[entry.tenant].waiting.append(entry)
        self.num_waiting += 1
        self.waiting_cost += entry.cost
        self._fill()

    def leave(self, entry: Entry) -> Entry | None:
        """``entry`` is over, or waits no more; returns who has its place now. Idempotent."""
        account = self._accounts.get(entry.tenant)
        if account is None:
            return None
        if entry in self._running:
            del self._running[entry]
            account.num_running -= 1
        elif entry in account.waiting:
            account.waiting.remove(entry)
            self.num_waiting -= 1
            self.waiting_cost -= entry.cost
        next_entry = self._fill()
        self._forget_idle()
        return next_entry

    def _fill(self) -> Entry | None:
        """Gives a free place to the first request of the tenant that was charged least; among equals, that
        came first.
        """
        if self.is_saturated or not self.num_waiting:
            return None
        account = min((each for each in self._accounts.values() if each.waiting), key=lambda each: each.charged)
        entry = account.waiting.popleft()
        self._virtual_time = max(self._virtual_time, account.charged)
        account.charged += entry.cost / account.weight
        account.num_running += 1
        self._running[entry] = None
        self.num_waiting -= 1
        self.waiting_cost -= entry.cost
        return entry

    def _forget_idle(self) -> None:
        """A tenant that is not ahead of the others begins anew when it comes back; if nobody waits, nobody is ahead."""
        contended = self.num_waiting > 0
        idle = [
            name
            for name, account in self._accounts.items()
            if account.is_idle and (not contended or account.charged <= self._virtual_time)
        ]
        for name in idle:
            del self._accounts[name]

    def _weight(self, tenant: TenantId) -> float:
        return self._weights.get(tenant, 1.0)


def _cost(account: _Account) -> int:
    return sum(entry.cost for entry in account.waiting)


class DrainRate:
    """How much cost is completed per second while every place is taken. Without load nothing is learned or
    forgotten.
    """

    def __init__(self) -> None:
        self._cost = 0.0
        self._time = 0.0
        self._since: Seconds | None = None

    @property
    def per_second(self) -> float | None:
        """None: nothing has been completed under load yet."""
        return self._cost / self._time if self._time >= MEASURED_AFTER and self._cost > 0 else None

    def record(self, now: Seconds, *, completed: int, loaded: bool) -> None:
        """``completed`` cost has just been done (0: only the load changed); from now on every place is
        taken, or not.
        """
        if self._since is not None:
            elapsed = now - self._since
            kept = 0.5 ** (elapsed / HALF_FORGOTTEN_AFTER)
            self._cost = self._cost * kept + completed
            self._time = self._time * kept + elapsed
        self._since = now if loaded else None


class RetryAdvice:
    """Tells those turned away when to come back: when what is ahead of them is done, they after those told before.

    Without the second half all of them would come back at once, and all but a few be turned away again.
    """

    def __init__(self, drain: DrainRate, *, unmeasured: Seconds) -> None:
        self._drain = drain
        self._unmeasured = unmeasured
        self._promised = 0.0
        self._at = Seconds(0.0)

    def wait_for(self, ahead: float) -> Seconds:
        """How long ``ahead`` takes, within what clients are told. While no rate is known: ``unmeasured``."""
        rate = self._drain.per_second
        return _bounded(self._unmeasured if rate is None else Seconds(ahead / rate))

    def take_turn(self, now: Seconds, *, ahead: float, cost: int) -> Seconds:
        """The same for a request of ``cost``, behind ``ahead`` and behind all that are to come back before it."""
        rate = self._drain.per_second
        if rate is None:
            return self.wait_for(ahead)
        self._promised = max(0.0, self._promised - (now - self._at) * rate)
        self._at = now
        wait = self.wait_for(ahead + self._promised)
        self._promised = min(self._promised + cost, MAX_RETRY_AFTER * rate)
        return wait


def _bounded(wait: Seconds) -> Seconds:
    return Seconds(min(max(wait, MIN_RETRY_AFTER), MAX_RETRY_AFTER))
