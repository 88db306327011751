"""Turns at prefill workers: who is told what, and when."""

from __future__ import annotations

from pdd.core.ids import WorkerId
from pdd.policy.prefill_turns import Standing
from pdd.router.driver.workers.prefill_turns import PrefillTurn, PrefillTurns

P, Q = WorkerId("P"), WorkerId("Q")


class Requests:
    """Some requests' turns, and what each was told."""

    def __init__(self, num: int) -> None:
        self.turns = PrefillTurns()
        self.told: list[list[bool]] = [[] for _ in range(num)]
        self.all = [self.turns.turn(told.append) for told in self.told]

    def __getitem__(self, number: int) -> PrefillTurn:
        return self.all[number]


def test_who_has_room_is_never_told_anything():
    requests = Requests(2)
    for turn in requests.all:
        turn.begin(P)
    requests[0].over()
    assert requests.told == [[], []]


def test_who_has_nothing_is_held_at_once_and_goes_on_when_it_has_room():
    requests = Requests(1)
    requests[0].stand(Standing.NOTHING)
    assert requests.told == [[]], "nothing is computed for it yet"
    requests[0].begin(P)
    requests[0].stand(Standing.ROOM)
    assert requests.told == [[False, True]]


def test_who_has_a_place_at_relay_decode_stands_behind_all_that_have_room_there():
    requests = Requests(4)
    for turn in requests.all[:3]:
        turn.begin(P)
    requests[3].begin(Q)
    requests[0].stand(Standing.RELAY_ONLY)
    requests[1].over()
    assert requests.told[0] == [False]
    requests[2].over()
    assert requests.told[0] == [False, True], "whoever is elsewhere delays nobody here"
    requests[1].begin(P)
    assert requests.told[0] == [False, True, False]


def test_losing_the_place_at_relay_decode_too_ends_the_prefill():
    requests = Requests(1)
    requests[0].begin(P)
    requests[0].stand(Standing.RELAY_ONLY)
    requests[0].stand(Standing.NOTHING)
    requests[0].stand(Standing.RELAY_ONLY)
    assert requests.told == [[False, True]]


def test_one_that_begins_again_where_it_was_lets_nobody_in_between():
    requests = Requests(2)
    requests[1].stand(Standing.RELAY_ONLY)
    requests[0].begin(P)
    requests[1].begin(P)
    requests[0].begin(P)
    assert requests.told == [[], [False]]


def test_a_start_that_may_not_be_is_told_so_however_often_it_comes():
    requests = Requests(1)
    requests[0].stand(Standing.NOTHING)
    requests[0].begin(P)
    requests[0].begin(Q)
    assert requests.told == [[False, False]]


def test_one_that_goes_elsewhere_leaves_its_turn():
    requests = Requests(2)
    requests[0].begin(P)
    requests[1].stand(Standing.RELAY_ONLY)
    requests[1].begin(P)
    requests[0].begin(Q)
    assert requests.told == [[], [False, True]]


def test_a_token_that_comes_with_the_word_to_wait_ends_no_turn():
    """The prefill is stopped, and its token dropped: it must be told to go on when there is room."""
    requests = Requests(2)
    for turn in requests.all:
        turn.begin(P)
    requests[0].stand(Standing.NOTHING)
    requests[0].computed()
    requests[1].computed()
    assert requests.turns.num_workers == 1
    requests[0].stand(Standing.ROOM)
    assert requests.told == [[False, True], []]
    requests[0].computed()
    assert requests.turns.num_workers == 0


def test_over_may_be_said_twice_and_nothing_is_kept():
    requests = Requests(2)
    requests[0].begin(P)
    requests[0].over()
    requests[0].over()
    requests[0].stand(Standing.NOTHING)
    assert requests.told == [[], []]
    assert requests.turns.num_workers == 0
