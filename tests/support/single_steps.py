"""The plain reference of a modelled engine's batch: ``policy.batching`` plans every single step, and nothing is put
together.

Job sets are random, their times whole numbers, so that a batch must agree with it to the last event: that calls meet
boundaries between steps is common. Where a call and the end of a step are at the same time, the call comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pdd.policy.batching import BatchingLimits, BatchScheduler, StepPlan


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One generation. Those of a ``family`` share their beginnings, of which the node has ``num_at_node`` tokens."""

    number: int
    num_known: int
    num_output: int
    family: int
    num_at_node: int


@dataclass(frozen=True, kw_only=True)
class JobSet:
    """``calls`` are (time, name of a batch's method, argument)."""

    limits: BatchingLimits
    max_span: int
    capacity: int
    specs: tuple[Spec, ...]
    calls: tuple[tuple[int, str, int], ...]


def random_job_set(seed: int) -> JobSet:
    """Up to 8 generations that come close to each other, some leave; now and then the engine slows down or stands
    still.
    """
    random = Random(seed)
    specs = tuple(
        Spec(
            number=number,
            num_known=random.choice((1, 2, random.randint(1, 60))),
            num_output=random.randint(1, random.choice((3, 60))),
            family=random.randint(0, 3),
            num_at_node=random.choice((0, 0, random.randint(1, 60))),
        )
        for number in range(random.randint(1, 8))
    )
    apart = random.choice((10, 100, 1000))
    calls: list[tuple[int, str, int]] = []
    for spec, at in zip(specs, sorted(random.randint(0, apart * len(specs)) for _ in specs), strict=True):
        calls.append((at, "add", spec.number))
        if random.random() < 0.3:
            calls.append((at + random.randint(1, 3 * apart), "remove", spec.number))
    for _ in range(random.choice((0, 0, 1, 2))):
        calls.append((random.randint(0, 2 * apart * len(specs)), "slow_down", random.randint(1, 4)))
        calls.append((random.randint(0, 2 * apart * len(specs)), "shift", random.randint(1, 100)))
    largest = max(spec.num_known + spec.num_output for spec in specs)
    return JobSet(
        limits=BatchingLimits(max_batch=random.randint(1, 6), prefill_chunk_tokens=random.choice((1, 5, 16, 64))),
        max_span=random.choice((1, 3, 8, 64)),
        capacity=random.choice((largest, 2 * largest, 1000)),
        specs=specs,
        calls=tuple(sorted(calls, key=lambda call: call[0])),
    )


class Times:
    """Whole numbers in place of ``StepTimes``."""

    def load(self, num_tokens: int) -> int:
        return 7 * num_tokens

    def mixed_step(self, chunks: Iterable[Any], *, num_decodes: int, num_context: int) -> int:
        chunked = sum(5 * chunk.num_tokens + chunk.num_context for chunk in chunks)
        return 11 + 3 * num_decodes + num_context + chunked

    def decode_steps(self, num_steps: int, *, num_decodes: int, num_context: int) -> int:
        growth = num_decodes * num_steps * (num_steps - 1) // 2
        return num_steps * self.mixed_step((), num_decodes=num_decodes, num_context=num_context) + growth


@dataclass
class Room:
    """A cache of ``capacity`` tokens, and what a batch told it when.

    A family's computed tokens are there for all of it.
    """

    capacity: int
    now: int = 0
    log: list[tuple[int, str, int, int]] = field(default_factory=list)
    _held: dict[int, int] = field(default_factory=dict)
    _computed: dict[int, int] = field(default_factory=dict)

    def admit(self, job: Any) -> bool:
        spec: Spec = job.what
        num_shared = min(self._computed.get(spec.family, 0), spec.num_known - 1)
        missing = spec.num_known + spec.num_output - num_shared
        if sum(self._held.values()) + missing > self.capacity:
            return False
        self._held[spec.number] = missing
        num_cached = min(max(num_shared, spec.num_at_node), spec.num_known - 1)
        job.admit(num_cached=num_cached, load_s=Times().load(num_cached - num_shared))
        self.log.append((self.now, "admitted", spec.number, num_cached))
        return True

    def grow(self, job: Any, num_tokens: int) -> bool:
        assert num_tokens <= job.what.num_known + job.what.num_output
        return True

    def release(self, job: Any) -> None:
        del self._held[job.what.number]
        self.log.append((self.now, "released", job.what.number, 0))

    def computed(self, job: Any) -> None:
        self._keep(job, "computed", job.num_computed_tokens)

    def emitted(self, job: Any, num_tokens: int) -> None:
        self._keep(job, "emitted", num_tokens)

    def _keep(self, job: Any, what: str, num_tokens: int) -> None:
        family = job.what.family
        self._computed[family] = max(self._computed.get(family, 0), job.num_computed_tokens)
        self.log.append((self.now, what, job.what.number, num_tokens))


@dataclass(frozen=True)
class _Chunk:
    num_tokens: int
    num_context: int


@dataclass(eq=False)
class SingleJob:
    """A sequence whose tokens are all drawn singly. ``spans``: so many are told when so many have been drawn."""

    what: Spec
    spans: dict[int, int]
    num_drawn: int = 0
    num_computed_tokens: int = 0
    load_s: int = 0
    paused: bool = False
    ended: bool = False

    @property
    def num_tokens(self) -> int:
        return self.num_computed_tokens if self.load_s else self.what.num_known + self.num_drawn

    def admit(self, *, num_cached: int, load_s: int) -> None:
        self.num_computed_tokens, self.load_s = num_cached, load_s


class SingleSteps:
    """Has the methods of ``sim.engine_batch.Batch``."""

    def __init__(self, room: Room, job_set: JobSet) -> None:
        self.num_plans = 0
        self._room = room
        self._max_span = job_set.max_span
        self._scheduler: BatchScheduler[SingleJob] = BatchScheduler(job_set.limits, room)
        self._loads: list[tuple[int, SingleJob]] = []
        self._loaded_at = 0
        self._slowdown = 1
        self._step: tuple[int, StepPlan[SingleJob]] | None = None

    def new_job(self, spec: Spec) -> SingleJob:
        return SingleJob(spec, _spans(spec.num_output, self._max_span))

    def next_event(self) -> int | None:
        return min([at for at, _ in self._loads] + ([self._step[0]] if self._step else []), default=None)

    def add(self, job: SingleJob, now: int) -> None:
        self._scheduler.add(job)
        self._begin(now)

    def remove(self, job: SingleJob, now: int) -> None:
        job.ended = True
        self._scheduler.remove(job)
        self._begin(now)

    def slow_down(self, factor: int, now: int) -> None:
        self._slowdown = factor

    def shift(self, duration: int) -> None:
        self._loaded_at += duration
        self._loads = [(at + duration, job) for at, job in self._loads]
        self._step = self._step and (self._step[0] + duration, self._step[1])

    def advance(self, now: int) -> None:
        for _, job in [load for load in self._loads if load[0] <= now]:
            job.load_s = 0
        self._loads = [load for load in self._loads if load[0] > now]
        if self._step is not None and self._step[0] <= now:
            works, self._step = self._step[1].work, None
            for work in works:
                if not work.sequence.ended:
                    self._compute(work.sequence, work.num_tokens)
        self._begin(now)

    def _begin(self, now: int) -> None:
        if self._step is not None:
            return
        self.num_plans += 1
        plan = self._scheduler.plan_step()
        assert not plan.preempted
        for job in plan.admitted:
            if job.load_s:
                self._loaded_at = max(now, self._loaded_at) + job.load_s * self._slowdown
                self._loads.append((self._loaded_at, job))
        if plan.work:
            self._step = (now + self._duration(plan), plan)

    def _duration(self, plan: StepPlan[SingleJob]) -> int:
        chunks = [_Chunk(work.num_tokens, work.sequence.num_computed_tokens) for work in plan.prefills]
        num_context = sum(job.num_tokens for job in plan.decodes)
        step = Times().mixed_step(chunks, num_decodes=len(plan.decodes), num_context=num_context)
        return step * self._slowdown

    def _compute(self, job: SingleJob, num_tokens: int) -> None:
        job.num_computed_tokens += num_tokens
        if not job.num_drawn:
            self._room.computed(job)
        if job.num_computed_tokens < job.num_tokens:
            return
        job.num_drawn += 1
        if job.num_drawn in job.spans:
            self._room.emitted(job, job.spans[job.num_drawn])
        if job.num_drawn == job.what.num_output:
            job.ended = True
            self._scheduler.remove(job)


def _spans(num_output: int, max_span: int) -> dict[int, int]:
    """The first three tokens come singly, then each time twice as many."""
    spans: dict[int, int] = {}
    num_told = 0
    while num_told < num_output:
        span = min(2 ** max(0, len(spans) - 2), max_span, num_output - num_told)
        num_told += span
        spans[num_told] = span
    return spans


def play_calls(
    batch: Any, room: Room, job_set: JobSet, new_job: Callable[[Spec], Any]
) -> list[tuple[int, str, int, int]]:
    """Plays all calls to ``batch``, and until nothing happens any more; what it told ``room``."""
    jobs = {spec.number: new_job(spec) for spec in job_set.specs}
    calls = list(job_set.calls)
    stood_still = 0
    while calls or batch.next_event() is not None:
        due = batch.next_event()
        if calls and (due is None or calls[0][0] + stood_still <= due):
            at, name, argument = calls.pop(0)
            room.now = at + stood_still
            if name == "shift":
                batch.shift(argument)
                stood_still += argument
            else:
                getattr(batch, name)(argument if name == "slow_down" else jobs[argument], room.now)
        else:
            room.now = due
            batch.advance(due)
    return room.log
