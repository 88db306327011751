"""The rate of a line, on explicit time."""

from __future__ import annotations

import pytest

from pdd.core.units import Bytes, Seconds
from pdd.protocol.rate import RateMeter


def acknowledge(meter: RateMeter, *times: float, size: int = 100) -> None:
    for time in times:
        meter.acknowledged(Seconds(time), Bytes(size))


def rate(meter: RateMeter, now: float) -> float:
    value = meter.rate(Seconds(now))
    assert value is not None
    return value


def test_there_is_no_rate_before_anything_was_acknowledged():
    meter = RateMeter(Seconds(2.0))
    meter.busy(Seconds(0.0))
    assert meter.rate(Seconds(5.0)) is None


def test_the_first_block_is_measured_from_its_start():
    meter = RateMeter(Seconds(2.0))
    meter.busy(Seconds(10.0))
    acknowledge(meter, 10.5)
    assert rate(meter, 10.5) == pytest.approx(200)


def test_old_samples_leave_the_window():
    meter = RateMeter(Seconds(2.0))
    meter.busy(Seconds(0.0))
    acknowledge(meter, 1.0, size=10_000)
    acknowledge(meter, *(2 + n / 10 for n in range(1, 31)), size=10)
    assert rate(meter, 5.0) == pytest.approx(100, rel=0.05)


def test_idle_time_changes_nothing():
    meter = RateMeter(Seconds(2.0))
    meter.busy(Seconds(0.0))
    acknowledge(meter, 0.5, 1.0)
    meter.idle(Seconds(1.0))
    assert rate(meter, 1000.0) == pytest.approx(200)
    meter.busy(Seconds(2000.0))
    acknowledge(meter, 2000.5)
    assert rate(meter, 2000.5) == pytest.approx(200)


def test_a_line_slower_than_a_block_per_window_has_a_rate():
    meter = RateMeter(Seconds(2.0))
    meter.busy(Seconds(0.0))
    acknowledge(meter, 6.0, 12.0, 18.0)
    assert rate(meter, 18.0) == pytest.approx(100 / 6)


def test_a_stalled_line_loses_its_rate():
    meter = RateMeter(Seconds(2.0))
    meter.busy(Seconds(0.0))
    acknowledge(meter, 0.1, 0.2, 0.3)
    assert rate(meter, 100.0) < 2


def test_a_rate_over_no_time_is_unknown():
    meter = RateMeter(Seconds(2.0))
    meter.busy(Seconds(0.0))
    acknowledge(meter, 0.0)
    assert meter.rate(Seconds(0.0)) is None


def test_many_small_fast_blocks_cost_no_more_memory_than_few():
    meter = RateMeter(Seconds(2.0))
    meter.busy(Seconds(0.0))
    acknowledge(meter, *(n / 10_000 for n in range(1, 50_001)), size=10)
    assert len(meter._samples) <= 66
    assert rate(meter, 5.0) == pytest.approx(100_000, rel=0.02)
