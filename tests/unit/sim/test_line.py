"""Fair sharing in closed form, alone and under in-memory nodes."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.sim.line import FairShare, FluidLine, carry
from pdd.sim.loop import run


def times(transfers, **line):
    return [carried.took_s for carried in carry(transfers, **line).transfers]


def test_one_transfer_alone_has_the_whole_line():
    assert times([(1.0, 500.0)], rate=100.0, delay=0.25) == [5.25]


def test_two_share_evenly_while_both_last():
    # 100 each until the first is through at 2 s, then the other's last 100 at full rate
    assert times([(0.0, 100.0), (0.0, 200.0)], rate=100.0, delay=0.0) == [2.0, 3.0]


def test_a_late_one_slows_the_first_down():
    assert times([(0.0, 100.0), (0.5, 25.0)], rate=100.0, delay=0.0) == [1.25, 0.5]


def test_without_a_free_connection_one_waits():
    result = carry([(0.0, 100.0), (0.0, 100.0), (0.5, 100.0)], rate=100.0, delay=0.0, connections=1)
    assert [carried.waited_s for carried in result.transfers] == [0.0, 1.0, 1.5]
    assert [carried.took_s for carried in result.transfers] == [1.0, 2.0, 2.5]
    assert result.full_s == result.busy_connection_s == result.duration_s == 3.0


def test_a_pool_that_is_never_full_changes_nothing():
    transfers = [(index * 0.1, 20.0) for index in range(50)]
    assert times(transfers, rate=100.0, delay=0.0, connections=50) == times(transfers, rate=100.0, delay=0.0)


def stepwise(transfers, rate, step):
    """The same by small steps of time."""
    left, took, now = {}, {}, 0.0
    while len(took) < len(transfers):
        for index, (at, size) in enumerate(transfers):
            if index not in took and index not in left and at <= now:
                left[index] = size
        for index in list(left):
            left[index] -= rate * step / max(1, len(left))
        now += step
        for index in [index for index, rest in left.items() if rest <= 0]:
            took[index] = now - transfers[index][0]
            del left[index]
    return [took[index] for index in range(len(transfers))]


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(1.0, 100.0)), min_size=1, max_size=6))
def test_the_closed_form_is_the_limit_of_small_steps(transfers):
    transfers = sorted(transfers)
    exact = times(transfers, rate=100.0, delay=0.0)
    assert exact == pytest.approx(stepwise(transfers, 100.0, 0.002), abs=0.03)


def test_the_mean_of_a_random_load_is_that_of_processor_sharing():
    draw = random.Random(1)
    now, transfers = 0.0, []
    for _ in range(200_000):
        now += draw.expovariate(0.7)
        transfers.append((now, draw.expovariate(1.0)))
    began = time.perf_counter()
    took = times(transfers, rate=1.0, delay=0.0)
    assert time.perf_counter() - began < 20
    assert sum(took) / len(took) == pytest.approx(1 / (1 - 0.7), rel=0.05)


def test_a_line_that_stands_still_ends_nobody():
    share = FairShare(100.0)
    share.begin(0.0, 100.0, "a")
    share.set_rate(0.5, 0.0)
    assert share.next_end() is None
    share.set_rate(2.0, 50.0)
    assert share.next_end() == 3.0
    assert share.end(3.0) == "a"


def play(calls, *, connections=None):
    """``calls`` are (time, what to do with the line and the log); returns the log."""

    async def main():
        line = FluidLine(rate=100.0, delay=0.1, connections=connections)
        log = []

        def note(what):
            log.append((round(asyncio.get_running_loop().time(), 6), what))

        def send(size, name):
            line.send(size, lambda: note(f"{name} sent"), lambda: note(f"{name} arrived"))

        for at, call in calls:
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            call(line, send, note)
        await asyncio.sleep(10.0)
        return log

    return run(main())


def test_blocks_of_two_senders_share_the_line():
    log = play([(0.0, lambda line, send, note: (send(100, "a"), send(50, "b")))])
    assert log == [(1.0, "b sent"), (1.1, "b arrived"), (1.5, "a sent"), (1.6, "a arrived")]


def test_a_sender_may_bring_its_next_block_when_the_last_is_sent():
    def begin(line, send, note):
        line.send(100, lambda: send(100, "next"), lambda: note("first arrived"))

    assert play([(0.0, begin)]) == [(1.1, "first arrived"), (2.0, "next sent"), (2.1, "next arrived")]


def test_a_cut_line_loses_what_is_on_it_and_takes_nothing_until_it_is_restored():
    log = play(
        [
            (0.0, lambda line, send, note: send(100, "a")),
            (1.05, lambda line, send, note: (send(100, "b"), line.cut())),
            (1.5, lambda line, send, note: send(100, "c")),
            (2.0, lambda line, send, note: (line.restore(), send(100, "d"))),
        ]
    )
    assert log == [(1.0, "a sent"), (3.0, "d sent"), (3.1, "d arrived")]


def test_a_stalled_line_loses_nothing():
    log = play(
        [
            (0.0, lambda line, send, note: send(100, "a")),
            (0.5, lambda line, send, note: (line.stall(), line.after_delay(lambda: note("told")))),
            (5.5, lambda line, send, note: line.resume()),
        ]
    )
    assert log == [(5.5, "told"), (6.0, "a sent"), (6.1, "a arrived")]


def test_what_is_between_sent_and_arrived_waits_for_the_end_of_a_stall_too():
    log = play(
        [
            (0.0, lambda line, send, note: send(100, "a")),
            (1.05, lambda line, send, note: line.stall()),
            (3.0, lambda line, send, note: line.resume()),
        ]
    )
    assert log == [(1.0, "a sent"), (3.0, "a arrived")]


def test_a_pool_of_connections_holds_blocks_back():
    log = play([(0.0, lambda line, send, note: (send(100, "a"), send(100, "b")))], connections=1)
    assert log == [(1.0, "a sent"), (1.1, "a arrived"), (2.0, "b sent"), (2.1, "b arrived")]


def test_a_changed_rate_counts_from_the_next_block_on():
    def slower(line, send, note):
        line.rate = 50.0
        send(100, "b")

    log = play([(0.0, lambda line, send, note: send(100, "a")), (0.5, slower)])
    assert log == [(2.5, "a sent"), (2.6, "a arrived"), (3.5, "b sent"), (3.6, "b arrived")]


def test_jitter_delays_blocks_but_none_overtakes_another():
    async def main():
        draws = iter([0.5, 0.0])
        line = FluidLine(rate=100.0, delay=0.1, jitter=lambda: next(draws))
        log = []
        loop = asyncio.get_running_loop()
        for name in "ab":
            line.send(10, lambda: None, lambda name=name: log.append((name, round(loop.time(), 6))))
            await asyncio.sleep(0.1)
        await asyncio.sleep(5.0)
        return log

    assert run(main()) == [("a", 0.7), ("b", 0.7)]
