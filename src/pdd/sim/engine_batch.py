"""What a modelled engine computes when: continuous batching with chunked prefill, by the laws of ``policy.batching``.

Each step gives every running decode its next token and prefills a chunk, oldest request first. While nobody prefills, steps
follow each other without a decision until some decode's span is due, so they are one event: its cost is per span, not per
token, and its time is the sum of the steps'. Whoever comes or leaves takes effect at the next step's boundary.

A request is admitted when its prompt and the answer that it will give fit the cache together, so nothing is ever preempted:
what an engine that guesses lengths well achieves. Pure: times are the caller's; it never waits.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from pdd.core.units import Seconds
from pdd.policy.batching import BatchingLimits, choose_chunk
from pdd.sim.engine_time import Chunk, StepTimes

_WhatT = TypeVar("_WhatT")
_SINGLE_TOKENS = 2
"""So many tokens after the first come singly: what users feel first is timed exactly."""


class Phase(Enum):
    """Where a job is."""

    WAITING = auto()
    LOADING = auto()
    PREFILL = auto()
    DECODE = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class Job(Generic[_WhatT]):
    """One generation: ``num_known`` tokens to compute, then ``num_output`` (at least one) to emit. ``what`` is the caller's."""

    what: _WhatT
    number: int
    """Unique and growing: who came first."""
    num_known: int
    num_output: int
    phase: Phase = Phase.WAITING
    num_computed: int = 0
    num_emitted: int = 0
    emitted_at: int = 0
    """Steps that the engine had done when the last span was emitted."""
    span: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A job has its room: ``num_cached`` of its known tokens (but the last) need no computing, once loaded in ``load_s``."""

    num_cached: int
    load_s: Seconds


class Host(Protocol[_WhatT]):
    """The engine around a batch: its cache, and whoever takes what was computed. It never calls back into the batch."""

    def admit(self, job: Job[_WhatT], /) -> Admission | None:
        """Finds room for a job; None: there is none now."""
        ...

    def computed(self, job: Job[_WhatT], /) -> None:
        """More of a job's known tokens are in the cache: ``job.num_computed``."""
        ...

    def emitted(self, job: Job[_WhatT], num_tokens: int, /) -> None:
        """A span of ``num_tokens``, the last one if ``job.num_emitted`` is now ``job.num_output``."""
        ...

    def release(self, job: Job[_WhatT], /) -> None:
        """An admitted job has ended, by itself or removed; called once."""
        ...


@dataclass(slots=True, kw_only=True)
class _Flight(Generic[_WhatT]):
    """The steps that run now: one with prefill in it, or ``num_steps`` of decodes only."""

    begun: float
    ends: float
    num_steps: int
    slowdown: float
    num_decodes: int
    num_context: int
    work: list[tuple[Job[_WhatT], int]] = field(default_factory=list[tuple[Job[_WhatT], int]])


class Batch(Generic[_WhatT]):
    """The jobs of one engine. After each call, ask ``next_event`` when to call ``advance``.

    Attributes:
        slowdown: multiplies the duration of every step that begins from now on.
    """

    def __init__(self, times: StepTimes, host: Host[_WhatT], limits: BatchingLimits, *, max_span: int) -> None:
        self.slowdown = 1.0
        self._times = times
        self._host = host
        self._limits = limits
        self._max_span = max_span
        self._waiting: deque[Job[_WhatT]] = deque()
        self._loading: list[tuple[float, int, Job[_WhatT]]] = []
        self._prefilling: list[Job[_WhatT]] = []
        self._due: list[tuple[int, int, Job[_WhatT]]] = []
        self._num_decodes = 0
        self._context_base = 0  # a decode's context is this part of it, and the number of steps done
        self._num_steps = 0
        self._num_running = 0
        self._may_admit = False
        self._loaded_at = 0.0
        self._flight: _Flight[_WhatT] | None = None

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return self._num_running

    def next_event(self) -> Seconds | None:
        """When something happens next if nobody comes or leaves."""
        times = [self._loading[0][0]] if self._loading else []
        if self._flight is not None:
            times.append(self._flight.ends)
        return Seconds(min(times)) if times else None

    def add(self, job: Job[_WhatT], now: float) -> None:
        """A job comes."""
        self._may_admit = self._may_admit or not self._waiting
        self._waiting.append(job)
        self._take_effect(now)

    def remove(self, job: Job[_WhatT], now: float) -> None:
        """A job leaves before its end; ended ones are ignored."""
        if job.phase is Phase.ENDED:
            return
        if job.phase is Phase.WAITING:
            self._waiting.remove(job)
            job.phase = Phase.ENDED
            self._may_admit = True
        else:
            self._leave(job)
        self._take_effect(now)

    def advance(self, at: float) -> None:
        """The time of ``next_event`` has come: tells the host what has been computed, and plans on."""
        while self._loading and self._loading[0][0] <= at:
            _, _, job = heapq.heappop(self._loading)
            if job.phase is Phase.LOADING:
                job.phase = Phase.PREFILL
                self._prefilling.append(job)
        if self._flight is not None and self._flight.ends <= at:
            self._land(self._flight)
            self._flight = None
        self._take_effect(at)

    def shift(self, duration: float) -> None:
        """The engine stood still for so long: all that goes on ends later."""
        self._loaded_at += duration
        self._loading = [(at + duration, number, job) for at, number, job in self._loading]
        if self._flight is not None:
            self._flight.begun += duration
            self._flight.ends += duration

    # What is planned --------------------------------------------------------------------------------------------------

    def _take_effect(self, now: float) -> None:
        """Something changed: at once if nothing runs, else at the next boundary between steps."""
        if self._flight is None:
            self._plan(now)
        elif not self._flight.work and now < self._flight.ends and (self._may_admit or self._prefilling):
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

    def _duration(self, flight: _Flight[_WhatT], num_steps: int) -> float:
        steps = self._times.decode_steps(num_steps, num_decodes=flight.num_decodes, num_context=flight.num_context)
        return steps * flight.slowdown

    def _plan(self, now: float) -> None:
        if self._may_admit:
            self._admit_waiting(now)
        work = self._choose_chunks()
        if not work and not self._num_decodes:
            return
        flight = _Flight(
            begun=now,
            ends=now,
            num_steps=1 if work else self._steps_until_due(),
            slowdown=self.slowdown,
            num_decodes=self._num_decodes,
            num_context=self._context_base + self._num_decodes * self._num_steps,
            work=work,
        )
        flight.ends = now + (self._mixed_duration(flight) if work else self._duration(flight, flight.num_steps))
        self._flight = flight

    def _mixed_duration(self, flight: _Flight[_WhatT]) -> float:
        chunks = [Chunk(num_tokens=count, num_context=job.num_computed) for job, count in flight.work]
        step = self._times.mixed_step(chunks, num_decodes=flight.num_decodes, num_context=flight.num_context)
        return step * flight.slowdown

    def _admit_waiting(self, now: float) -> None:
        """In order of arrival, and never overtaken by a smaller one where there is no room, else the large would starve."""
        self._may_admit = False
        while self._waiting and self._num_running < self._limits.max_batch:
            admission = self._host.admit(self._waiting[0])
            if admission is None:
                return
            job = self._waiting.popleft()
            self._num_running += 1
            job.num_computed = admission.num_cached
            if admission.load_s > 0:
                job.phase = Phase.LOADING
                self._loaded_at = max(now, self._loaded_at) + admission.load_s * self.slowdown
                heapq.heappush(self._loading, (self._loaded_at, job.number, job))
            else:
                job.phase = Phase.PREFILL
                self._prefilling.append(job)

    def _choose_chunks(self) -> list[tuple[Job[_WhatT], int]]:
        work: list[tuple[Job[_WhatT], int]] = []
        budget = self._limits.prefill_chunk_tokens
        for job in self._prefilling:
            count = choose_chunk(job.num_known - job.num_computed, budget)
            if not count:
                break
            work.append((job, count))
            budget -= count
        return work

    def _steps_until_due(self) -> int:
        while self._due[0][2].phase is Phase.ENDED:
            heapq.heappop(self._due)
        return self._due[0][0] - self._num_steps

    # What has been computed -------------------------------------------------------------------------------------------

    def _land(self, flight: _Flight[_WhatT]) -> None:
        self._num_steps += flight.num_steps
        due = self._pop_due()
        for job, count in flight.work:
            if job.phase is not Phase.ENDED:
                self._compute(job, count)
        for job in due:
            self._emit(job, self._num_steps - job.emitted_at)

    def _pop_due(self) -> list[Job[_WhatT]]:
        due: list[Job[_WhatT]] = []
        while self._due and self._due[0][0] <= self._num_steps:
            job = heapq.heappop(self._due)[2]
            if job.phase is not Phase.ENDED:
                due.append(job)
        return due

    def _compute(self, job: Job[_WhatT], count: int) -> None:
        job.num_computed += count
        self._host.computed(job)
        if job.num_computed < job.num_known:
            return
        self._prefilling.remove(job)
        job.phase = Phase.DECODE
        self._num_decodes += 1
        self._context_base += job.num_known + 1 - self._num_steps
        self._emit(job, 1)  # the first token comes with the last chunk

    def _emit(self, job: Job[_WhatT], num_tokens: int) -> None:
        job.num_emitted += num_tokens
        job.emitted_at = self._num_steps
        self._host.emitted(job, num_tokens)
        if job.num_emitted == job.num_output:
            self._leave(job)
            return
        if job.num_emitted > _SINGLE_TOKENS:
            job.span = min(2 * job.span, self._max_span)
        span = min(job.span, job.num_output - job.num_emitted)
        heapq.heappush(self._due, (self._num_steps + span, job.number, job))

    def _leave(self, job: Job[_WhatT]) -> None:
        if job.phase is Phase.PREFILL:
            self._prefilling.remove(job)
        elif job.phase is Phase.DECODE:
            # Its context when it leaves: known and emitted tokens, and those of the span that it never emits.
            self._num_decodes -= 1
            self._context_base -= job.num_known + job.num_emitted - job.emitted_at
        job.phase = Phase.ENDED
        self._num_running -= 1
        self._may_admit = True
        self._host.release(job)
