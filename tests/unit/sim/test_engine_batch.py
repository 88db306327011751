"""A batch of many steps at once computes exactly what ``policy.batching`` plans step by step, whoever comes
and goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from pdd.core.units import Seconds
from pdd.policy.batching import BatchingLimits
from pdd.sim.engine_batch import Batch, Job
from pdd.sim.engine_time import StepTimes
from pdd.sim.profile import load_hardware, load_model
from tests.support.single_steps import Room, SingleSteps, Spec, Times, play_calls, random_job_set

TIMES = StepTimes(
    load_model("Llama-3.1-70B"), load_hardware("H100-SXM"), num_chips=8, cache_tokens=500_000, name="test"
)
STEP = TIMES.decode_steps(1, num_decodes=1, num_context=101)


@dataclass
class Arrival:
    at: float
    num_known: int
    num_output: int
    num_cached: int = 0
    load_s: float = 0.0
    leaves_at: float | None = None


@dataclass
class Host:
    """Room for ``capacity`` jobs; remembers when what was emitted."""

    arrivals: dict[int, Arrival]
    capacity: int = 1000
    held: set[int] = field(default_factory=set)
    now: float = 0.0
    num_events: int = 0
    spans: dict[int, list[tuple[float, int]]] = field(default_factory=dict)

    def admit(self, job: Job[None]) -> bool:
        if len(self.held) >= self.capacity:
            return False
        self.held.add(job.number)
        arrival = self.arrivals[job.number]
        job.admit(num_cached=min(arrival.num_cached, job.num_known - 1), load_s=Seconds(arrival.load_s))
        return True

    def grow(self, job: Job[None], num_tokens: int) -> bool:
        return True

    def computed(self, job: Job[None]) -> None:
        assert job.num_computed_tokens <= job.num_known

    def emitted(self, job: Job[None], num_tokens: int) -> None:
        self.spans.setdefault(job.number, []).append((self.now, num_tokens))

    def release(self, job: Job[None]) -> None:
        self.held.remove(job.number)


def play(
    arrivals: list[Arrival],
    *,
    max_span: int,
    capacity: int = 1000,
    max_batch: int = 8,
    chunk: int = 512,
    host: Host | None = None,
) -> Host:
    """Plays arrivals and departures to the end."""
    host = host or Host(dict(enumerate(arrivals)), capacity)
    batch = Batch(TIMES, host, BatchingLimits(max_batch=max_batch, prefill_chunk_tokens=chunk), max_span=max_span)
    jobs = {
        number: Job(what=None, number=number, num_known=arrival.num_known, num_output=arrival.num_output)
        for number, arrival in host.arrivals.items()
    }
    calls = [(arrival.at, number, batch.add) for number, arrival in host.arrivals.items()]
    calls += [(a.leaves_at, number, batch.remove) for number, a in host.arrivals.items() if a.leaves_at is not None]
    calls.sort(key=lambda call: call[:2])
    while calls or batch.next_event() is not None:
        due = batch.next_event()
        if due is None or (calls and calls[0][0] < due):
            at, number, call = calls.pop(0)
            host.now = max(at, host.now)
            call(jobs[number], at)
        else:
            host.now = due
            host.num_events += 1
            batch.advance(due)
    assert not host.held
    assert batch.num_running == batch.num_waiting == 0
    for number, arrival in host.arrivals.items():
        if arrival.leaves_at is None:
            assert sum(count for _, count in host.spans[number]) == arrival.num_output
            assert jobs[number].ended
    return host


def token_times(spans: list[tuple[float, int]]) -> list[float]:
    return [at for at, count in spans for _ in range(count)]


@pytest.mark.parametrize("first_seed", range(0, 2400, 400))
def test_steps_put_together_are_the_scheduler_s_single_steps(first_seed):
    for seed in range(first_seed, first_seed + 400):
        job_set = random_job_set(seed)
        room, same_room = Room(job_set.capacity), Room(job_set.capacity)
        single = SingleSteps(room, job_set)
        batch = Batch(Times(), same_room, job_set.limits, max_span=job_set.max_span)
        expected = play_calls(single, room, job_set, single.new_job)
        assert play_calls(batch, same_room, job_set, new_job) == expected, f"random_job_set({seed})"


def new_job(spec: Spec) -> Job[Spec]:
    return Job(what=spec, number=spec.number, num_known=spec.num_known, num_output=spec.num_output)


def test_steps_without_a_decision_are_one_event():
    host = play([Arrival(at=0.0, num_known=100, num_output=1000)], max_span=64)
    assert host.num_events == len(host.spans[0]) < 30


def test_a_decode_takes_as_long_as_its_steps():
    host = play([Arrival(at=1.0, num_known=100, num_output=501)], max_span=64)
    times = token_times(host.spans[0])
    assert times[0] > 1.0
    assert times[-1] - times[0] == pytest.approx(TIMES.decode_steps(500, num_decodes=1, num_context=101))


def test_the_first_tokens_come_singly_and_spans_grow_up_to_the_bound():
    host = play([Arrival(at=0.0, num_known=100, num_output=100)], max_span=16)
    assert [count for _, count in host.spans[0]] == [1, 1, 1, 2, 4, 8, 16, 16, 16, 16, 16, 3]


def test_a_prefill_beside_decodes_slows_them_by_its_chunks_only():
    alone = play([Arrival(at=0.0, num_known=100, num_output=200)], max_span=1)
    beside = play(
        [Arrival(at=0.0, num_known=100, num_output=200), Arrival(at=0.5, num_known=5120, num_output=1)], max_span=1
    )
    gaps = [after - before for (before, _), (after, _) in zip(beside.spans[0], beside.spans[0][1:], strict=False)]
    assert sum(gap > 2 * STEP for gap in gaps) == 10  # 5120 tokens in chunks of 512
    assert token_times(beside.spans[0])[-1] > token_times(alone.spans[0])[-1]


def test_one_who_comes_waits_for_the_step_that_runs_not_for_the_span():
    scene = [Arrival(at=0.0, num_known=100, num_output=1000), Arrival(at=3.0, num_known=2, num_output=1)]
    assert token_times(play(scene, max_span=64).spans[1])[0] - 3.0 < 3 * STEP


def test_one_who_leaves_makes_room_at_once():
    scene = [
        Arrival(at=0.0, num_known=100, num_output=1000, leaves_at=1.0),
        Arrival(at=0.1, num_known=100, num_output=2),
    ]
    host = play(scene, max_span=64, capacity=1)
    assert 1.0 < token_times(host.spans[1])[0] < 1.0 + 4 * STEP


def test_the_large_is_not_overtaken_by_the_small_while_it_waits_for_room():
    scene = [Arrival(at=0.1 * index, num_known=100, num_output=100) for index in range(6)]
    host = play(scene, max_span=8, max_batch=2)
    begins = [spans[0][0] for _, spans in sorted(host.spans.items())]
    assert begins == sorted(begins)


def test_loads_follow_each_other_and_hold_up_nobody_who_computes():
    scene = [
        Arrival(at=0.0, num_known=100, num_output=200),
        Arrival(at=0.5, num_known=1000, num_output=1, num_cached=990, load_s=0.4),
        Arrival(at=0.5, num_known=1000, num_output=1, num_cached=990, load_s=0.4),
    ]
    host = play(scene, max_span=1)
    assert 0.9 < token_times(host.spans[1])[0] < 0.9 + 5 * STEP
    assert 1.3 < token_times(host.spans[2])[0] < 1.3 + 5 * STEP
    gaps = [after - before for (before, _), (after, _) in zip(host.spans[0], host.spans[0][1:], strict=False)]
    assert max(gaps) < 3 * STEP


def test_who_leaves_takes_the_whole_of_its_context_along():
    scene = [Arrival(at=0.0, num_known=100, num_output=1001), Arrival(at=0.0, num_known=3000, num_output=20)]
    times = token_times(play(scene, max_span=1).spans[0])
    last = 500
    assert times[-1] - times[-1 - last] == pytest.approx(
        TIMES.decode_steps(last, num_decodes=1, num_context=100 + 1001 - last)
    )


def test_two_prefills_share_one_steps_budget():
    scene = [Arrival(at=0.0, num_known=1, num_output=1)]
    scene += [Arrival(at=0.0001, num_known=400, num_output=1) for _ in range(2)]
    host = play(scene, max_span=1)
    assert host.spans[1][0][0] < host.spans[2][0][0]


def test_when_one_that_found_no_room_leaves_the_next_in_line_is_asked():
    class Choosy(Host):
        def admit(self, job: Job[None]) -> bool:
            return job.num_known != 3000 and super().admit(job)

    scene = [
        Arrival(at=0.0, num_known=100, num_output=1000),
        Arrival(at=0.1, num_known=3000, num_output=1, leaves_at=0.3),
        Arrival(at=0.2, num_known=100, num_output=1),
    ]
    host = play(scene, max_span=64, host=Choosy(dict(enumerate(scene))))
    assert 0.3 < host.spans[2][0][0] < 0.3 + 4 * STEP


def test_a_standstill_moves_everything_by_its_length():
    scene = [Arrival(at=0.0, num_known=100, num_output=50)]
    host = Host(dict(enumerate(scene)))
    batch = Batch(TIMES, host, BatchingLimits(max_batch=8, prefill_chunk_tokens=512), max_span=64)
    batch.add(Job(what=None, number=0, num_known=100, num_output=50), 0.0)
    due = batch.next_event()
    batch.shift(10.0)
    assert batch.next_event() == due + 10.0


def test_a_slow_engine_takes_so_many_times_as_long_from_its_next_step_on():
    host = Host({0: Arrival(at=0.0, num_known=100, num_output=501)})
    batch = Batch(TIMES, host, BatchingLimits(max_batch=8, prefill_chunk_tokens=512), max_span=64)
    batch.add(Job(what=None, number=0, num_known=100, num_output=501), 0.0)
    batch.slow_down(3.0, 0.0)
    while (due := batch.next_event()) is not None:
        host.now = due
        batch.advance(due)
    times = token_times(host.spans[0])
    assert times[-1] - times[0] == pytest.approx(3 * TIMES.decode_steps(500, num_decodes=1, num_context=101))
