from __future__ import annotations

import pytest

from pdd.belief.pace import HALF_LIFE, RolePace
from pdd.core.ids import WorkerId
from pdd.core.units import Seconds

A, B = WorkerId("a"), WorkerId("b")


def test_without_news_nothing_is_known_and_all_are_alike() -> None:
    pace = RolePace()
    assert (pace.unit_s, pace.alone_s, pace.crowd_s, pace.typical_work) == (None, None, None, None)
    assert pace.slowness(A, Seconds(5.0)) == 1.0


def test_means_are_over_all_workers() -> None:
    pace = RolePace()
    pace.record(A, work=10.0, seconds=Seconds(1.0), now=Seconds(0.0))
    pace.record(B, work=10.0, seconds=Seconds(3.0), now=Seconds(0.0))
    assert pace.unit_s == pytest.approx(0.2)
    assert pace.alone_s == pace.unit_s
    assert pace.typical_work == pytest.approx(10.0)


def test_what_a_crowd_costs_is_fitted_to_what_was_measured() -> None:
    pace = RolePace()
    for beside in (0, 2, 5, 9, 4):
        pace.record(A, work=10.0, seconds=Seconds(10 * (0.3 + 0.02 * beside)), now=Seconds(0.0), beside=beside)
    assert pace.crowd_s == pytest.approx(0.02)
    assert pace.alone_s == pytest.approx(0.3)
    assert pace.slowness(A, Seconds(0.0)) == pytest.approx(1.0)


def test_what_a_crowd_costs_is_not_guessed_from_crowds_that_are_all_alike() -> None:
    pace = RolePace()
    for beside in (4, 5, 4, 5):
        pace.record(A, work=10.0, seconds=Seconds(1.0 + beside), now=Seconds(0.0), beside=beside)
    assert pace.crowd_s is None


@pytest.mark.parametrize(("alone", "crowded"), [(1.0, 0.5), (0.001, 1.0)])
def test_nobody_is_thought_to_be_slower_alone_or_done_in_less_than_no_time(alone: float, crowded: float) -> None:
    pace = RolePace()
    for seconds, beside in ((alone, 1), (crowded, 9)):
        pace.record(A, work=1.0, seconds=Seconds(seconds), now=Seconds(0.0), beside=beside)
    assert pace.crowd_s is not None
    assert pace.crowd_s >= 0.0
    assert pace.alone_s is not None
    assert pace.alone_s >= -1e-12


def test_the_slow_one_is_slower_than_the_others_and_the_fast_one_faster() -> None:
    pace = RolePace()
    for _ in range(40):
        pace.record(A, work=10.0, seconds=Seconds(4.0), now=Seconds(0.0))
        pace.record(B, work=10.0, seconds=Seconds(1.0), now=Seconds(0.0))
    assert pace.slowness(A, Seconds(0.0)) == pytest.approx(1.6, abs=0.1)
    assert pace.slowness(B, Seconds(0.0)) == pytest.approx(0.4, abs=0.1)


def test_who_gets_more_requests_does_not_look_slow_for_it() -> None:
    pace = RolePace()
    for round_ in range(40):
        for worker, beside in ((A, 10 + round_ % 5), (B, round_ % 3)):
            seconds = Seconds(100 * (0.01 + 0.001 * beside))
            pace.record(worker, work=100.0, seconds=seconds, now=Seconds(0.0), beside=beside)
    assert pace.slowness(A, Seconds(0.0)) == pytest.approx(1.0, abs=0.05)
    assert pace.slowness(B, Seconds(0.0)) == pytest.approx(1.0, abs=0.05)


def test_one_odd_sample_says_little() -> None:
    pace = RolePace()
    pace.record(B, work=1000.0, seconds=Seconds(10.0), now=Seconds(0.0))
    pace.record(A, work=1.0, seconds=Seconds(0.5), now=Seconds(0.0))
    assert pace.slowness(A, Seconds(0.0)) < 1.2, "though it took fifty times as long as others for it"


def test_what_was_slow_is_forgotten() -> None:
    pace = RolePace()
    pace.record(B, work=2000.0, seconds=Seconds(20.0), now=Seconds(0.0))
    pace.record(A, work=100.0, seconds=Seconds(20.0), now=Seconds(0.0))
    before = pace.slowness(A, Seconds(0.0))
    assert before > 2.5
    assert pace.slowness(A, HALF_LIFE) < before
    assert pace.slowness(A, Seconds(20 * HALF_LIFE)) == pytest.approx(1.0, abs=0.01)


def test_it_follows_a_change_of_pace() -> None:
    pace = RolePace()
    for second in range(300):
        pace.record(A, work=1.0, seconds=Seconds(1.0 if second < 150 else 3.0), now=Seconds(float(second)))
    assert pace.unit_s == pytest.approx(3.0, abs=0.1)
    assert pace.slowness(A, Seconds(299.0)) == pytest.approx(1.0, abs=0.2), "it is its own measure"


def test_who_was_slow_and_is_no_more_is_soon_like_the_others() -> None:
    pace = RolePace()
    for second in range(400):
        slow = 3.0 if second < 300 else 1.0
        pace.record(A, work=1.0, seconds=Seconds(slow), now=Seconds(float(second)))
        pace.record(B, work=1.0, seconds=Seconds(1.0), now=Seconds(float(second)))
        if second == 299:
            assert pace.slowness(A, Seconds(299.0)) > 1.4
    assert pace.slowness(A, Seconds(399.0)) < 1.15
