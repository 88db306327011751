import pytest

from pdd.core.request import HandoffMode, Route, Steering
from pdd.core.topology import HandoffRule
from pdd.policy.handoff import MIN_CAP_TOKENS, Batches, choose_handoff, choose_relay_cap
from tests.support.views import request_view

ONE_SHOT, CATCH_UP = HandoffMode.ONE_SHOT, HandoffMode.CATCH_UP


def _choose(gap, previous_gap=None, rounds=0, **surroundings):
    batches = Batches(gap=gap, previous_gap=previous_gap, rounds=rounds)
    return choose_handoff(request_view(**surroundings), batches)


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


@pytest.mark.parametrize(("load", "mode"), [(0.0, CATCH_UP), (0.75, CATCH_UP), (0.76, ONE_SHOT), (1.5, ONE_SHOT)])
def test_a_busy_relay_decode_is_released_at_once(load, mode):
    assert _choose(500, relay_load=load, one_shot_load=0.75) is mode


def test_the_rivals_ask_for_no_load():
    busy = {"relay_load": 1.0, "one_shot_load": 0.75}
    assert _choose(500, handoff=HandoffRule.CATCH_UP, **busy) is CATCH_UP
    assert _choose(10, handoff=HandoffRule.CATCH_UP, **busy) is ONE_SHOT
    assert _choose(500, handoff=HandoffRule.ONE_SHOT) is ONE_SHOT


def _cap(wait=10.0, itl=0.02, load=0.9, **surroundings):
    return choose_relay_cap(request_view(itl=itl, relay_load=load, **surroundings), wait)


def test_a_relay_is_cut_short_only_while_room_is_short():
    assert (_cap(load=0.75), _cap(load=0.76)) == (None, 1000)


def test_a_relay_may_always_give_a_few_tokens():
    assert _cap(wait=0.01) == MIN_CAP_TOKENS


def test_a_relay_of_unknown_length_or_pace_has_no_cap():
    assert (_cap(wait=None), _cap(itl=None)) == (None, None)


def test_a_relay_that_is_pinned_or_has_nothing_to_wait_for_has_no_cap():
    assert _cap(steering=Steering(route=Route.RELAY)) is None
    assert _cap(main_available=False) is None
