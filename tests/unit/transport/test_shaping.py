"""The emulated line's arithmetic, on explicit time."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.units import BitsPerSecond, Bytes, Seconds
from pdd.transport.shaping import BURST_S, FairQueue, Line, LineClock, LineSettings, RateLimit

MBIT = 1_000_000.0


def settings(rate=20 * MBIT, delay=0.015, jitter=0.0):
    return LineSettings(rate_bits_per_s=BitsPerSecond(rate), delay_s=Seconds(delay), jitter_s=Seconds(jitter))


def no_chance():
    return 0.0


class Sender:
    """A flow that always has another quantum to send, as a bulk transfer does."""

    def __init__(self, line, name, quantum):
        self.line, self.name, self.quantum, self.sent = line, name, quantum, 0
        self.push()

    def push(self):
        self.line.send(self.name, Bytes(self.quantum), (self.name, self.sent))
        self.sent += 1


def run(line, senders, *, until, step):
    """Drives a line as a loop does that wakes every ``step`` seconds; returns (time, item) of every arrival."""
    by_name = {sender.name: sender for sender in senders}
    arrivals, now = [], 0.0
    while now < until:
        while (served := line.serve(Seconds(now))) is not None:
            if served[0] in by_name:
                by_name[served[0]].push()
        while (arrived := line.deliver(Seconds(now))) is not None:
            arrivals.append((now, arrived[1]))
        now += step
    return arrivals


def test_a_quantum_arrives_after_its_line_time_and_the_delay():
    line = Line(settings(rate=8_000_000, delay=0.1), no_chance)
    line.send("flow", Bytes(10_000), "item")
    assert line.serve(Seconds(1.0)) == "item"  # 10 ms of line time, of which up to BURST_S may be caught up on
    arrives = line.next_event()
    assert arrives == pytest.approx(1.0 + 0.010 - BURST_S + 0.1)
    assert line.deliver(Seconds(arrives - 1e-6)) is None
    assert line.deliver(arrives) == ("flow", "item")


def test_nothing_arrives_before_one_delay_even_when_line_time_is_caught_up():
    line = Line(settings(rate=1e9, delay=0.1), no_chance)
    line.send("flow", Bytes(100), "item")
    line.serve(Seconds(5.0))
    assert line.next_event() == pytest.approx(5.1)


@pytest.mark.parametrize("step", [0.0001, 0.001, 0.003])
@pytest.mark.parametrize("rate", [1 * MBIT, 20 * MBIT, 200 * MBIT])
def test_a_bulk_flow_gets_the_whole_rate_however_coarse_the_timer(rate, step):
    line = Line(settings(rate=rate), no_chance)
    run(line, [Sender(line, "bulk", line.settings.quantum)], until=4.0, step=step)
    assert line.sent_bytes * 8 / 4.0 == pytest.approx(rate, rel=0.02)


def test_waking_much_too_late_loses_line_time_instead_of_bursting():
    line = Line(settings(), no_chance)
    sender = Sender(line, "bulk", line.settings.quantum)
    run(line, [sender], until=1.0, step=0.1)
    assert line.sent_bytes * 8 < 0.2 * 20 * MBIT


def test_flows_with_different_quanta_share_the_bytes_equally():
    line = Line(settings(), no_chance)
    sizes = {"large": 3750, "medium": 2000, "small": 700}
    senders = [Sender(line, name, size) for name, size in sizes.items()]
    run(line, senders, until=3.0, step=0.0005)
    shares = [sender.sent * sender.quantum for sender in senders]
    assert max(shares) - min(shares) <= 2 * max(sizes.values())


def test_a_small_message_waits_for_one_quantum_of_each_bulk_flow_at_most():
    line = Line(settings(delay=0.0), no_chance)
    quantum = line.settings.quantum
    bulk = [Sender(line, f"bulk-{n}", quantum) for n in range(4)]
    run(line, bulk, until=1.0, step=0.0005)
    line.send("small", Bytes(64), ("small", 0))
    before = line.sent_bytes
    now = 1.0
    while (served := line.serve(Seconds(now))) is None or served[0] != "small":
        if served is not None:
            bulk[int(served[0][-1])].push()
        now += 0.0001
    assert line.sent_bytes - before <= 5 * quantum


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=200), st.integers(0, 2**32))
def test_jitter_never_reorders_a_flow(sizes, seed):
    line = Line(settings(jitter=0.05), random.Random(seed).random)
    now, arrived = 0.0, []
    for number, size in enumerate(sizes):
        line.send("flow", Bytes(size), number)
        while line.serve(Seconds(now)) is None:
            now += 0.001
    while (item := line.deliver(Seconds(now + 10))) is not None:
        arrived.append(item[1])
    assert arrived == list(range(len(sizes)))


def test_jitter_only_ever_adds_up_to_itself():
    line = Line(settings(rate=1e9, delay=0.02, jitter=0.03), random.Random(7).random)
    waits = []
    for number in range(500):
        sent_at = Seconds(number * 1.0)
        line.send("flow", Bytes(10), number)
        line.serve(sent_at)
        waits.append(line.next_event() - sent_at)
        line.deliver(Seconds(sent_at + 0.9))
    assert min(waits) >= 0.02
    assert max(waits) <= 0.0501
    assert max(waits) - min(waits) > 0.02


def test_a_slower_rate_applies_to_what_is_not_on_the_line_yet():
    line = Line(settings(rate=80 * MBIT), no_chance)
    sender = Sender(line, "bulk", 1448)
    run(line, [sender], until=1.0, step=0.0005)
    before = line.sent_bytes
    line.change(settings(rate=8 * MBIT), Seconds(1.0))
    now = 1.0
    while now < 2.0:
        while line.serve(Seconds(now)) is not None:
            sender.push()
        now += 0.0005
    assert (line.sent_bytes - before) * 8 == pytest.approx(8 * MBIT, rel=0.02)


def test_a_faster_rate_applies_at_once_though_the_line_was_busy_for_long():
    limit = RateLimit(BitsPerSecond(1000.0))
    limit.take(Bytes(1250), Seconds(10.0))  # ten seconds of line time
    limit.change(BitsPerSecond(1e6), Seconds(10.0))
    assert limit.free_at <= 10.02


def test_a_shorter_delay_does_not_let_later_bytes_overtake():
    line = Line(settings(rate=1e9, delay=1.0), no_chance)
    line.send("flow", Bytes(10), "first")
    line.serve(Seconds(0.0))
    line.change(settings(rate=1e9, delay=0.0), Seconds(0.1))
    line.send("flow", Bytes(10), "second")
    line.serve(Seconds(0.1))
    assert line.deliver(Seconds(0.5)) is None
    assert line.deliver(Seconds(1.1)) == ("flow", "first")
    assert line.deliver(Seconds(1.1)) == ("flow", "second")


def test_a_signal_takes_the_delay_and_no_line_time():
    line = Line(settings(rate=1000.0, delay=0.25), no_chance)
    line.signal("flow", "syn", Seconds(2.0))
    assert line.next_event() == pytest.approx(2.25)
    assert line.sent_bytes == 0


def test_a_forgotten_flow_leaves_nothing_behind():
    line = Line(settings(), no_chance)
    line.send("gone", Bytes(1000), "on the line")
    line.serve(Seconds(0.0))
    line.send("gone", Bytes(1000), "queued")
    line.send("stays", Bytes(1000), "other")
    line.forget("gone")
    assert line.serve(Seconds(1.0)) == "other"
    assert line.serve(Seconds(2.0)) is None
    assert line.deliver(Seconds(3.0)) == ("stays", "other")
    assert line.deliver(Seconds(3.0)) is None
    assert line.next_event() is None


def test_an_idle_flow_that_comes_back_has_no_saved_up_claim():
    queue = FairQueue()
    for _ in range(100):
        queue.push("busy", Bytes(1000), "busy")
        queue.pop()
    queue.push("idle", Bytes(1000), "idle")
    queue.push("busy", Bytes(1000), "busy")
    order = []
    for _ in range(6):
        flow, _, item = queue.pop()
        order.append(item)
        queue.push(flow, Bytes(1000), item)
    assert order.count("idle") == 3


def test_a_paused_clock_stands_still_and_goes_on_where_it_stood():
    clock = LineClock(Seconds(100.0))
    assert clock.now(Seconds(103.0)) == 3.0
    clock.pause(Seconds(103.0))
    clock.pause(Seconds(104.0))
    assert clock.now(Seconds(110.0)) == 3.0
    assert clock.real_time_of(Seconds(4.0)) is None
    clock.resume(Seconds(110.0))
    clock.resume(Seconds(111.0))
    assert clock.now(Seconds(111.0)) == 4.0
    assert clock.real_time_of(Seconds(5.0)) == 112.0


def test_the_window_of_a_flow_is_little_more_than_the_bandwidth_delay_product():
    for rate in (20 * MBIT, 200 * MBIT):
        found = settings(rate=rate, delay=0.015)
        product = rate / 8 * 0.015
        assert product < found.window < 2 * product + 2 * found.quantum


def test_a_quantum_is_never_less_than_a_packet_nor_more_than_a_buffer():
    assert settings(rate=1000.0).quantum == 1448
    assert settings(rate=1e12).quantum == 64 * 1024
