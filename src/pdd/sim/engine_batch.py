"""What a modelled engine computes when: the steps that ``policy.batching`` plans, each as long as ``StepTimes`` says.

While nobody prefills, each step's plan is the same as the one before until somebody comes, leaves or is loaded. So all
steps until some decode's span is due are one event: its cost is per span, not per token, and its time is the sum of the
steps'. Whoever comes or leaves meanwhile takes effect at the next step's boundary. Pure: times are the caller's; it
never waits.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pdd.core.units import Seconds
from pdd.policy.batching import BatchingLimits, BatchScheduler, CacheSpace, StepWork
from pdd.sim.engine_time import Chunk, StepTimes

_WhatT = TypeVar("_WhatT")
_SINGLE_TOKENS = 2
"""So many tokens after the first come singly: what users feel first is timed exactly."""


@dataclass(slots=True, eq=False, kw_only=True)
class Job(Generic[_WhatT]):
    """One generation: ``num_known`` tokens to compute, then ``num_output`` (at least one) to emit. ``what`` is the
    caller's.

    Satisfies ``policy.batching.Schedulable``, as of its last span: a decode's tokens in between are counted when they
    are due.
    """

    what: _WhatT
    number: int
    """Unique and growing: who came first."""
    num_known: int
    num_output: int
    num_tokens: int = 0
    num_computed_tokens: int = 0
    load_s: Seconds = Seconds(0.0)
    num_emitted: int = 0
    emitted_at: int = 0
    """Steps that the engine had done when it began to decode, or emitted its last span."""
    span: int = 1
    ended: bool = False

    @property
    def paused(self) -> bool:
        """No reader lags behind."""
        return False

    def admit(self, *, num_cached: int, load_s: Seconds) -> None:
        """It has its room: ``num_cached`` of its known tokens (but the last) need no computing, once loaded in
        ``load_s``.
        """
        self.num_computed_tokens = num_cached
        self.num_tokens = num_cached if load_s else self.num_known
        self.load_s = load_s


class Host(CacheSpace[Job[_WhatT]], Protocol[_WhatT]):
    """The engine around a batch: its cache, and whoever takes what was computed. It never calls back into the batch.

    ``admit`` finds room for a job's known tokens and its whole answer, and calls ``Job.admit``: nobody is ever
    preempted.
    """

    def computed(self, job: Job[_WhatT], /) -> None:
        """More of a job's known tokens are in the cache: ``job.num_computed_tokens``."""
        ...

    def emitted(self, job: Job[_WhatT], num_tokens: int, /) -> None:
        """A span of ``num_tokens``, the last one if ``job.num_emitted`` is now ``job.num_output``."""
        ...


@dataclass(slots=True, kw_only=True)
class _Flight(Generic[_WhatT]):
    """The steps that run now: one with ``prefills``, or ``num_steps`` of decodes only."""

    begun: float
    ends: float
    num_steps: int
    slowdown: float
    prefills: tuple[StepWork[Job[_WhatT]], ...]


class Batch(Generic[_WhatT]):
    """The jobs of one engine. After each call, ask ``next_event`` when to call ``advance``."""

    def __init__(self, times: StepTimes, host: Host[_WhatT], limits: BatchingLimits, *, max_span: int) -> None:
        self._times = times
        self._host = host
        self._scheduler: BatchScheduler[Job[_WhatT]] = BatchScheduler(limits, host)
        self._max_span = max_span
        self._slowdown = 1.0
        self._loading: deque[tuple[float, Job[_WhatT]]] = deque()
        self._loaded_at = 0.0
        self._due: list[tuple[int, int, Job[_WhatT]]] = []
        self._num_steps = 0
        self._num_decodes = 0
        self._context_base = 0  # the decodes' context is this, and the number of steps done once for each of them
        self._plan_holds = False
        self._flight: _Flight[_WhatT] | None = None

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    def next_event(self) -> Seconds | None:
        """When something happens next if nobody comes or leaves."""
        times = [self._loading[0][0]] if self._loading else []
        if self._flight is not None:
            times.append(self._flight.ends)
        return Seconds(min(times)) if times else None

    def add(self, job: Job[_WhatT], now: float) -> None:
        """A job comes."""
        self._scheduler.add(job)
        self._replan(now)

    def remove(self, job: Job[_WhatT], now: float) -> None:
        """A job leaves before its end; ended ones are ignored."""
        if not job.ended:
            self._end(job)
            self._replan(now)

    def slow_down(self, factor: float, now: float) -> None:
        """Every step that begins from now on takes ``factor`` times as long as it should."""
        self._slowdown = factor
        self._replan(now)

    def advance(self, at: float) -> None:
        """The time of ``next_event`` has come: tells the host what has been computed, and plans on."""
        loaded = False
        while self._loading and self._loading[0][0] <= at:
            _, job = self._loading.popleft()
            job.num_tokens = job.num_known
            loaded = True
        if self._flight is not None and self._flight.ends <= at:
            self._land(self._flight)
            self._flight = None
        if loaded:
            self._replan(at)
        elif self._flight is None:
            self._plan(at)

    def shift(self, duration: float) -> None:
        """The engine stood still for so long: all that goes on ends later."""
        self._loaded_at += duration
        self._loading = deque((at + duration, job) for at, job in self._loading)
        if self._flight is not None:
            self._flight.begun += duration
            self._flight.ends += duration

    # What is planned --------------------------------------------------------------------------------------------------

    def _replan(self, now: float) -> None:
        """Something changed: at once if nothing runs, else at the next boundary between steps."""
        self._plan_holds = False
        if self._flight is None:
            self._plan(now)
        elif self._flight.num_steps > 1 and now < self._flight.ends:
            self._cut_short(self._flight, now)

    def _cut_short(self, flight: _Flight[_WhatT], now: float) -> None:
        first, last = 1, flight.num_steps
        while first < last:
            middle = (first + last) // 2
            if flight.begun + self._duration(flight, middle) >= now:
                last = middle
            else:
                first = middle + 1
        flight.num_steps = first
        flight.ends = flight.begun + self._duration(flight, first)

    def _plan(self, now: float) -> None:
        """Begins the next steps."""
        # The next in line may find room when a span fills blocks that it shares: it asks again after each.
        may_admit = self._scheduler.num_waiting > 0 and not self._scheduler.is_full
        prefills = () if self._plan_holds and not may_admit else self._plan_step(now)
        if not prefills and not self._num_decodes:
            return
        num_steps = 1 if prefills else self._steps_until_due()
        flight = _Flight(begun=now, ends=now, num_steps=num_steps, slowdown=self._slowdown, prefills=prefills)
        flight.ends += self._duration(flight, num_steps)
        self._flight = flight

    def _plan_step(self, now: float) -> tuple[StepWork[Job[_WhatT]], ...]:
        plan = self._scheduler.plan_step()
        for job in plan.admitted:
            if job.load_s:
                self._loaded_at = max(now, self._loaded_at) + job.load_s * self._slowdown
                self._loading.append((self._loaded_at, job))
        for job in plan.decodes:
            if not job.num_emitted:
                self._set_due(job, 1)  # the last token of its prefill
        self._num_decodes = len(plan.decodes)
        self._context_base = sum(job.num_tokens - job.emitted_at for job in plan.decodes)
        self._plan_holds = not plan.prefills
        return plan.prefills

    def _duration(self, flight: _Flight[_WhatT], num_steps: int) -> float:
        num_decodes = self._num_decodes
        num_context = self._context_base + num_decodes * self._num_steps
        if flight.prefills:
            chunks = [
                Chunk(num_tokens=work.num_tokens, num_context=work.sequence.num_computed_tokens)
                for work in flight.prefills
            ]
            steps = self._times.mixed_step(chunks, num_decodes=num_decodes, num_context=num_context)
        else:
            steps = self._times.decode_steps(num_steps, num_decodes=num_decodes, num_context=num_context)
        return steps * flight.slowdown

    def _steps_until_due(self) -> int:
        while self._due[0][2].ended:
            heapq.heappop(self._due)
        return self._due[0][0] - self._num_steps

    def _set_due(self, job: Job[_WhatT], num_steps: int) -> None:
        job.emitted_at = self._num_steps
        heapq.heappush(self._due, (self._num_steps + num_steps, job.number, job))

    # What has been computed -------------------------------------------------------------------------------------------

    def _land(self, flight: _Flight[_WhatT]) -> None:
        """In the plan's order: decodes, oldest first, then prefills."""
        self._num_steps += flight.num_steps
        while self._due and self._due[0][0] <= self._num_steps:
            job = heapq.heappop(self._due)[2]
            if job.ended:
                continue
            if job.num_emitted:
                self._emit(job, self._num_steps - job.emitted_at)
            else:
                self._compute(job, 1)
        for work in flight.prefills:
            if not work.sequence.ended:
                self._compute(work.sequence, work.num_tokens)

    def _compute(self, job: Job[_WhatT], num_tokens: int) -> None:
        job.num_computed_tokens += num_tokens
        self._host.computed(job)
        if job.num_computed_tokens == job.num_known:
            self._emit(job, 1)  # the first token comes with the last chunk

    def _emit(self, job: Job[_WhatT], num_tokens: int) -> None:
        job.num_emitted += num_tokens
        job.num_tokens = job.num_known + job.num_emitted
        job.num_computed_tokens = job.num_tokens - 1
        self._host.emitted(job, num_tokens)
        if job.num_emitted == job.num_output:
            self._end(job)
            return
        if job.num_emitted > _SINGLE_TOKENS:
            job.span = min(2 * job.span, self._max_span)
        self._set_due(job, min(job.span, job.num_output - job.num_emitted))

    def _end(self, job: Job[_WhatT]) -> None:
        job.ended = True
        self._scheduler.remove(job)
        self._plan_holds = False
