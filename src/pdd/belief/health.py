"""Whether a worker can be trusted with the next request: answers to health checks, lifetimes, and a circuit breaker.

Two different questions. *Is its process there?* Health checks tell, with hysteresis: one answer that is late says
little.
*Do its generations end well?* The breaker tells: a process may answer every check and still break all that it begins.
Only the worker's own failures count: a wrong request, a full queue or a client that left says nothing about it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from pdd.core.topology import HealthTable
from pdd.core.units import Seconds

MAX_OPEN_FACTOR = 12
"""A breaker whose trials fail again and again stays open at most so many times ``breaker_open_s``: a minute by default.
"""
LATE_AFTER = Seconds(1.0)
"""Long before an unanswered check counts as lost, it is a reason to send a new request elsewhere."""


class Lifetime:
    """One process of a worker, from its first answered check until it is declared down or another one answers."""

    __slots__ = ("_listeners", "ended", "heard", "instance", "since")

    def __init__(self, instance: str, since: Seconds) -> None:
        self.instance = instance
        self.since = since
        self.ended = False
        self.heard = False
        """Something came from it since the last check began: it lives, however late its answer is."""
        self._listeners: dict[object, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"<Lifetime {self.instance} since {self.since:g} s, {'ended' if self.ended else 'lasts'}>"

    def on_end(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls ``listener`` when it ends, at once if it has ended. Returns what takes that back. Idempotent."""
        if self.ended:
            listener()
            return lambda: None
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    def end(self) -> list[Exception]:
        """It is gone, or counts as gone. Every listener is told, whatever another one raises; that is returned.
        Idempotent.
        """
        self.ended = True
        errors: list[Exception] = []
        while self._listeners:
            listener = self._listeners.pop(next(iter(self._listeners)))
            try:
                listener()
            except Exception as error:  # noqa: BLE001 - a health check ends it: it can do nothing about it, and must go on
                errors.append(error)
        return errors


class Pulse:
    """Counts a worker's answered and missed checks. Its first answer ever counts at once: before it nothing
    was known.
    """

    def __init__(self, rule: HealthTable) -> None:
        self._rule = rule
        self._answers = rule.checks_to_up - 1
        self._misses = 0
        self.up = False

    def answered(self) -> None:
        self._misses = 0
        self._answers += 1
        if self._answers >= self._rule.checks_to_up:
            self.up = True

    def missed(self) -> None:
        """No answer within the time for it."""
        self._answers = 0
        self._misses += 1
        if self._misses >= self._rule.checks_to_down:
            self.up = False

    def refused(self) -> None:
        """Nobody is there, or one of whom nothing can be wanted: no second check is needed to know."""
        self._answers = 0
        self._misses = self._rule.checks_to_down
        self.up = False


@dataclass(slots=True)
class Attention:
    """Whether somebody answers checks, and how late it is with the present one."""

    pulse: Pulse
    asked_at: Seconds | None = None
    """Of the first check since the last answer."""

    def asked(self, now: Seconds) -> None:
        self.asked_at = now if self.asked_at is None else self.asked_at

    def answered(self) -> None:
        self.asked_at = None
        self.pulse.answered()

    def heard(self) -> None:
        """No answer, but a sign of life."""
        self.asked_at = None

    def is_late(self, now: Seconds) -> bool:
        return self.asked_at is not None and now - self.asked_at >= LATE_AFTER


class BreakerState(StrEnum):
    """Whether a worker's breaker lets requests through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """One request may try; how it ends decides."""


class Breaker:
    """A worker's circuit breaker. It opens on ``breaker_failures`` failures within ``breaker_window_s``, or in a row.

    In a row, because silence takes its time to be noticed: who does nothing but hang rarely fails thrice within a
    window. After a while it lets one request try (``begin``). If that fails, too, it is open for twice as long as
    before.
    """

    def __init__(self, rule: HealthTable) -> None:
        self._rule = rule
        self._failures: deque[Seconds] = deque(maxlen=rule.breaker_failures)
        self._num_in_a_row = 0
        self._open_s = rule.breaker_open_s
        self._open_until: Seconds | None = None
        self._on_trial = False

    def state(self, now: Seconds) -> BreakerState:
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def lets_through(self, now: Seconds) -> bool:
        """Whether one more request may go to the worker."""
        state = self.state(now)
        return state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and not self._on_trial)

    def begin(self, now: Seconds) -> bool:
        """A request goes to the worker. True: it is the trial, and ``end_trial`` must follow when it is over."""
        is_trial = self.state(now) is BreakerState.HALF_OPEN and not self._on_trial
        self._on_trial = self._on_trial or is_trial
        return is_trial

    def end_trial(self) -> None:
        """The trial is over, whether or not anything was learned from it: another one may follow."""
        self._on_trial = False

    def succeeded(self, now: Seconds) -> None:
        """A generation ended as it should. While the breaker is open that says nothing new: it began before."""
        self._num_in_a_row = 0
        if self.state(now) is BreakerState.HALF_OPEN:
            self._open_until = None
            self._open_s = self._rule.breaker_open_s
            self._failures.clear()

    def failed(self, now: Seconds) -> None:
        """A generation broke off through the worker's own fault."""
        state = self.state(now)
        match state:
            case BreakerState.OPEN:
                return
            case BreakerState.HALF_OPEN:
                self._open_s = Seconds(min(2 * self._open_s, MAX_OPEN_FACTOR * self._rule.breaker_open_s))
                self._open(now)
            case BreakerState.CLOSED:
                self._failures.append(now)
                self._num_in_a_row += 1
                if self._num_in_a_row == self._rule.breaker_failures or self._is_too_much(now):
                    self._open(now)
            case _:
                assert_never(state)

    def _open(self, now: Seconds) -> None:
        self._open_until = Seconds(now + self._open_s)

    def _is_too_much(self, now: Seconds) -> bool:
        """So many failures as the rule allows, the first of them within the window."""
        full = len(self._failures) == self._rule.breaker_failures
        return full and now - self._failures[0] <= self._rule.breaker_window_s
