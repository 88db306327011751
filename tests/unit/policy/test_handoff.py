import pytest

from pdd.core.request import HandoffMode
from pdd.policy.handoff import HandoffView, choose_handoff

ONE_SHOT, CATCH_UP = HandoffMode.ONE_SHOT, HandoffMode.CATCH_UP


def _choose(gap, previous_gap=None, rounds=0, threshold_tokens=64, max_rounds=3):
    return choose_handoff(
        HandoffView(
            gap=gap,
            previous_gap=previous_gap,
            rounds=rounds,
            threshold_tokens=threshold_tokens,
            max_rounds=max_rounds,
        )
    )


@pytest.mark.parametrize(("gap", "mode"), [(0, ONE_SHOT), (64, ONE_SHOT), (65, CATCH_UP), (500, CATCH_UP)])
def test_a_gap_above_the_threshold_goes_in_batches(gap, mode):
    assert _choose(gap) is mode


@pytest.mark.parametrize(
    ("gap", "previous_gap", "mode"),
    [(100, 200, CATCH_UP), (101, 200, ONE_SHOT), (300, 200, ONE_SHOT), (64, 500, ONE_SHOT), (65, 500, CATCH_UP)],
)
def test_batches_go_on_while_they_halve_and_are_worth_it(gap, previous_gap, mode):
    assert _choose(gap, previous_gap, rounds=1) is mode


@pytest.mark.parametrize(("rounds", "mode"), [(2, CATCH_UP), (3, ONE_SHOT), (4, ONE_SHOT)])
def test_rounds_are_bounded(rounds, mode):
    assert _choose(100, 1000, rounds=rounds) is mode


def test_a_threshold_of_nothing_still_ends_after_the_rounds():
    gap, previous, rounds = 1 << 20, None, 0
    while _choose(gap, previous, rounds, threshold_tokens=0) is CATCH_UP:
        gap, previous, rounds = gap // 2, gap, rounds + 1
    assert rounds == 3


def test_no_rounds_allowed_means_one_shot():
    assert _choose(500, max_rounds=0) is ONE_SHOT
