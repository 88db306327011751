"""Fills in a request's report while it runs."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from pdd.core.clock import Clock
from pdd.core.ids import RequestId
from pdd.core.request import Role
from pdd.core.units import Seconds
from pdd.router.base import RequestReport
from pdd.telemetry.events import Event, EventSink, Field


class Reporter:
    """One per request; its clock starts when it is made. ``sink`` gets every event too, at the clock's own time."""

    def __init__(
        self, request_id: RequestId, *, num_prompt_tokens: int, clock: Clock, sink: EventSink | None = None
    ) -> None:
        self.report = RequestReport(num_prompt_tokens=num_prompt_tokens)
        self._request_id = request_id
        self._clock = clock
        self._sink = sink
        self._opened_at = clock.now()
        self._last_role: Role | None = None
        self._last_at = Seconds(0.0)
        self._num_tokens = 0
        self._intervals: list[float] = []

    def note(self, name: str, **fields: Field) -> None:
        """Records an event, now."""
        event = Event(at=self._elapsed(), name=name, request=self._request_id, fields=fields)
        self.report.events.append(event)
        if self._sink is not None:
            self._sink(replace(event, at=self._clock.now()))

    def emitted(self, role: Role, num_tokens: int) -> None:
        """``num_tokens`` (at least one) tokens go to the client, now and at once."""
        now = self._elapsed()
        by_role = self.report.tokens_by_role
        by_role[role] = by_role.get(role, 0) + num_tokens
        if self._last_role is None:
            self.report.ttft_s = now
            self.note("first_token", role=role)
        else:
            self._follow(role, Seconds(now - self._last_at), num_tokens)
        if self.report.ttst_s is None and self._num_tokens + num_tokens >= 2:
            self.report.ttst_s = now
        self._num_tokens += num_tokens
        self._last_role, self._last_at = role, now

    def _follow(self, role: Role, gap: Seconds, num_tokens: int) -> None:
        """A gap that ends with a burst counts whole as the largest, but shared among the burst's tokens as
        the median.
        """
        report = self.report
        report.max_itl_s = max(report.max_itl_s or gap, gap)
        self._intervals.extend([gap / num_tokens] * num_tokens)
        if role is Role.MAIN_DECODE and self._last_role is Role.RELAY_DECODE:
            report.handoff_gap_s = max(report.handoff_gap_s or gap, gap)
            report.handoff_rounds += 1
            self.note("handed_off", gap_s=round(gap, 6))

    def close(self, outcome: str) -> None:
        """The last event; ``outcome`` is its name."""
        if self._intervals:
            self.report.median_itl_s = Seconds(median(self._intervals))
        self.note(outcome, tokens=self._num_tokens)

    def _elapsed(self) -> Seconds:
        return Seconds(self._clock.now() - self._opened_at)
