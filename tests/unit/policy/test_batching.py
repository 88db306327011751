from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.errors import ConfigError
from pdd.policy.batching import BatchingLimits, BatchScheduler, choose_chunk


@dataclass(eq=False)
class Job:
    name: str
    num_tokens: int
    num_computed_tokens: int = 0
    paused: bool = False
    room: int = 0
    cached: int = 0


@dataclass
class Space:
    """Rooms counted in single tokens."""

    capacity: int = 1_000_000
    used: int = 0
    released: list[str] = field(default_factory=list)

    def admit(self, job: Job) -> bool:
        if self.used + job.num_tokens > self.capacity:
            return False
        self.used += job.num_tokens
        job.room = job.num_tokens
        job.num_computed_tokens = min(job.cached, job.num_tokens - 1)
        return True

    def grow(self, job: Job, num_tokens: int) -> bool:
        missing = max(0, num_tokens - job.room)
        if self.used + missing > self.capacity:
            return False
        self.used += missing
        job.room += missing
        return True

    def release(self, job: Job) -> None:
        self.used -= job.room
        job.room = job.num_computed_tokens = 0
        self.released.append(job.name)


def scheduler(space: Space | None = None, *, max_batch: int = 4, chunk: int = 100):
    return BatchScheduler(BatchingLimits(max_batch=max_batch, prefill_chunk_tokens=chunk), space or Space())


def compute(plan, *, generate: bool = True) -> None:
    for work in plan.work:
        completes = work.completes
        work.sequence.num_computed_tokens += work.num_tokens
        if completes and generate:
            work.sequence.num_tokens += 1


def planned(plan) -> list[tuple[str, int]]:
    return [(work.sequence.name, work.num_tokens) for work in plan.work]


def test_a_long_prefill_goes_in_chunks_and_only_the_last_completes():
    batch = scheduler()
    batch.add(Job("a", 250))
    seen = []
    for _ in range(3):
        plan = batch.plan_step()
        seen += [(*planned(plan), plan.work[0].completes)]
        compute(plan)
    assert seen == [(("a", 100), False), (("a", 100), False), (("a", 50), True)]


def test_decodes_go_first_and_a_prefill_gets_its_whole_chunk_beside_them():
    batch = scheduler()
    batch.add(Job("decoding", 10))
    compute(batch.plan_step())
    batch.add(Job("long", 500))
    assert planned(batch.plan_step()) == [("decoding", 1), ("long", 100)]


def test_the_older_prefill_is_finished_before_the_younger_gets_the_rest():
    batch = scheduler()
    batch.add(Job("a", 130))
    batch.add(Job("b", 130))
    first = batch.plan_step()
    assert planned(first) == [("a", 100)]
    compute(first)
    assert planned(batch.plan_step()) == [("a", 30), ("b", 70)]


def test_a_prefill_for_which_an_older_one_leaves_nothing_waits():
    batch = scheduler()
    older = Job("older", 300)
    batch.add(older)
    compute(batch.plan_step())
    older.paused = True
    batch.add(Job("younger", 300))
    compute(batch.plan_step())
    older.paused = False
    assert planned(batch.plan_step()) == [("older", 100)]


def test_what_the_cache_holds_is_not_planned():
    batch = scheduler()
    batch.add(Job("a", 120, cached=96))
    assert planned(batch.plan_step()) == [("a", 24)]


def test_a_known_sequence_still_computes_its_last_token():
    batch = scheduler()
    batch.add(Job("a", 64, cached=64))
    plan = batch.plan_step()
    assert planned(plan) == [("a", 1)]
    assert plan.work[0].completes


def test_a_full_batch_lets_nobody_in_until_one_leaves():
    batch = scheduler(max_batch=2)
    jobs = [Job(name, 5) for name in "abc"]
    for job in jobs:
        batch.add(job)
    compute(batch.plan_step())
    assert (batch.num_running, batch.num_waiting) == (2, 1)
    batch.remove(jobs[0])
    assert planned(batch.plan_step()) == [("b", 1), ("c", 5)]


def test_a_large_request_without_room_is_not_overtaken_by_a_small_one():
    batch = scheduler(Space(capacity=100))
    first, large, small = Job("first", 50), Job("large", 80), Job("small", 5)
    for job in (first, large, small):
        batch.add(job)
    compute(batch.plan_step())
    assert planned(batch.plan_step()) == [("first", 1)]
    batch.remove(first)
    assert planned(batch.plan_step())[0] == ("large", 80)


def test_the_youngest_gives_way_when_the_cache_is_full_and_comes_back_first():
    space = Space(capacity=30)
    batch = scheduler(space)
    old, young, waiting = Job("old", 14), Job("young", 14), Job("waiting", 14)
    for job in (old, young, waiting):
        batch.add(job)
    compute(batch.plan_step())
    compute(batch.plan_step())  # both grow by one: the cache is full
    plan = batch.plan_step()
    assert planned(plan) == [("old", 1)]
    assert plan.preempted == (young,)
    assert young.num_computed_tokens == 0
    batch.remove(old)
    assert planned(batch.plan_step())[0] == ("young", 16)


def test_the_only_sequence_is_never_preempted():
    batch = scheduler(Space(capacity=20))
    batch.add(Job("a", 10))
    for _ in range(10):
        compute(batch.plan_step())
    plan = batch.plan_step()
    assert plan.preempted == ()
    assert planned(plan) == [("a", 1)]


def test_a_paused_sequence_is_skipped_and_gives_way_before_others():
    batch = scheduler(Space(capacity=30))
    paused, young = Job("paused", 14), Job("young", 14)
    batch.add(paused)
    batch.add(young)
    compute(batch.plan_step())
    paused.paused = True
    for _ in range(2):
        compute(batch.plan_step())
    plan = batch.plan_step()
    assert plan.preempted == (paused,)
    assert planned(plan) == [("young", 1)]
    assert batch.has_work
    young.paused = True
    assert not batch.has_work


def test_paused_sequences_give_their_places_to_waiting_ones():
    batch = scheduler(max_batch=1)
    paused, waiting = Job("paused", 5), Job("waiting", 5)
    batch.add(paused)
    batch.add(waiting)
    compute(batch.plan_step())
    paused.paused = True
    assert planned(batch.plan_step()) == [("waiting", 5)]
    paused.paused = False
    batch.remove(waiting)
    assert planned(batch.plan_step()) == [("paused", 6)]


def test_one_whose_kv_is_on_its_way_keeps_its_place_and_holds_nobody_up():
    batch = scheduler(max_batch=2)
    loading, other, third = Job("loading", 50, cached=50), Job("other", 30), Job("third", 30)
    for job in (loading, other, third):
        batch.add(job)
    space_admits = batch._space.admit

    def admit(job: Job) -> bool:
        admitted = space_admits(job)
        if job is loading:
            job.num_tokens = job.num_computed_tokens
        return admitted

    batch._space.admit = admit
    plan = batch.plan_step()
    assert (plan.admitted, planned(plan)) == ((loading, other), [("other", 30)])
    assert batch.is_full
    compute(plan)
    assert planned(batch.plan_step()) == [("other", 1)]
    loading.num_tokens = 50
    assert planned(batch.plan_step()) == [("loading", 1), ("other", 1)]


def test_removing_gives_back_the_room_and_removing_twice_is_harmless():
    space = Space()
    batch = scheduler(space)
    running, waiting = Job("running", 5), Job("waiting", 5)
    batch.add(running)
    batch.plan_step()
    batch.add(waiting)
    for _ in range(2):
        batch.remove(running)
        batch.remove(waiting)
    assert space.used == 0
    assert space.released == ["running"]
    assert not batch.has_work
    assert planned(batch.plan_step()) == []


def test_a_tiny_tail_is_avoided_by_halving_the_last_two_chunks():
    assert choose_chunk(102, 100) == 51
    assert choose_chunk(100, 100) == 100
    assert choose_chunk(125, 100) == 100


@given(st.integers(1, 5000), st.integers(0, 300))
def test_chunks_never_exceed_the_budget_and_always_progress(remaining, budget):
    chunk = choose_chunk(remaining, budget)
    assert 0 <= chunk <= min(remaining, budget)
    assert chunk > 0 or budget == 0


@pytest.mark.parametrize("limits", [{"max_batch": 0}, {"prefill_chunk_tokens": 0}])
def test_limits_below_one_are_refused(limits):
    with pytest.raises(ConfigError, match=next(iter(limits))):
        BatchingLimits(**({"max_batch": 1, "prefill_chunk_tokens": 1} | limits))


@given(st.data())
def test_every_request_is_done_whatever_comes_goes_and_pauses(data):
    capacity = data.draw(st.integers(20, 60))
    space = Space(capacity=capacity)
    limits = BatchingLimits(max_batch=data.draw(st.integers(1, 4)), prefill_chunk_tokens=data.draw(st.integers(1, 16)))
    batch = BatchScheduler(limits, space)
    # No job outgrows the capacity when alone: that much its owner has checked.
    wanted = {Job(str(i), data.draw(st.integers(1, 10))): data.draw(st.integers(1, 9)) for i in range(6)}
    target = {job: job.num_tokens + more for job, more in wanted.items()}
    for job in wanted:
        batch.add(job)
    for step in range(600):
        if not target:
            break
        if step < 100:
            for job in target:
                job.paused = data.draw(st.booleans()) if step % 7 == 0 else job.paused
        else:
            for job in target:
                job.paused = False
        plan = batch.plan_step()
        assert sum(work.num_tokens for work in plan.work) <= limits.max_step_tokens
        assert len({id(work.sequence) for work in plan.work}) == len(plan.work) <= limits.max_batch
        assert not any(work.sequence.paused for work in plan.work)
        assert space.used <= capacity
        assert plan.work or plan.preempted or not batch.has_work
        compute(plan)
        for job in [job for job in target if job.num_tokens >= target[job]]:
            batch.remove(job)
            del target[job]
    assert not target
    assert space.used == 0
