from __future__ import annotations

import pytest

from pdd.core.ids import WorkerId
from pdd.core.units import Seconds
from pdd.policy.pace import HALF_LIFE, RolePace

A, B = WorkerId("a"), WorkerId("b")


def test_without_news_nothing_is_known_and_all_are_alike() -> None:
    pace = RolePace()
    assert pace.unit_s is None
    assert pace.typical_s is None
    assert pace.slowness(A, Seconds(5.0)) == 1.0


def test_means_are_over_all_workers() -> None:
    pace = RolePace()
    pace.record(A, work=10.0, seconds=Seconds(1.0), now=Seconds(0.0))
    pace.record(B, work=10.0, seconds=Seconds(3.0), now=Seconds(0.0))
    assert pace.unit_s == pytest.approx(0.2)
    assert pace.typical_s == pytest.approx(2.0)


def test_the_slow_one_is_slower_than_the_others_and_the_fast_one_faster() -> None:
    pace = RolePace()
    for _ in range(20):
        pace.record(A, work=10.0, seconds=Seconds(4.0), now=Seconds(0.0))
        pace.record(B, work=10.0, seconds=Seconds(1.0), now=Seconds(0.0))
    assert pace.slowness(A, Seconds(0.0)) == pytest.approx(1.6, abs=0.05)
    assert pace.slowness(B, Seconds(0.0)) == pytest.approx(0.4, abs=0.05)


def test_one_odd_sample_says_little() -> None:
    pace = RolePace()
    pace.record(B, work=1000.0, seconds=Seconds(10.0), now=Seconds(0.0))
    pace.record(A, work=1.0, seconds=Seconds(0.5), now=Seconds(0.0))
    assert pace.slowness(A, Seconds(0.0)) < 1.6, "though it took fifty times as long as others for it"


def test_what_was_slow_is_forgotten() -> None:
    pace = RolePace()
    pace.record(B, work=1000.0, seconds=Seconds(10.0), now=Seconds(0.0))
    pace.record(A, work=100.0, seconds=Seconds(20.0), now=Seconds(0.0))
    before = pace.slowness(A, Seconds(0.0))
    assert before > 5.0
    assert pace.slowness(A, HALF_LIFE) < before
    assert pace.slowness(A, Seconds(20 * HALF_LIFE)) == pytest.approx(1.0, abs=0.01)


def test_it_follows_a_change_of_pace() -> None:
    pace = RolePace()
    for second in range(300):
        pace.record(A, work=1.0, seconds=Seconds(1.0 if second < 150 else 3.0), now=Seconds(float(second)))
    assert pace.unit_s == pytest.approx(3.0, abs=0.1)
