from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.ids import WorkerId
from pdd.core.topology import PlacementRule
from pdd.core.units import Seconds
from pdd.policy.placement import Bid, choose_bid, predict_decode_queue

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def bid(name: WorkerId, own: float = 1.0, queue: float = 0.0, load: float = 0.0) -> Bid:
    return Bid(name=name, own=Seconds(own), queue=Seconds(queue), load=load)


def choose(*bids: Bid, home: WorkerId | None = None, rule: PlacementRule = PlacementRule.PREFIX) -> WorkerId:
    return choose_bid(bids, rule, home=home)


def test_the_longest_prefix_wins_while_nobody_queues() -> None:
    assert choose(bid(A, own=5.0), bid(B, own=0.1), bid(C, own=5.0)) == B


def test_a_prefix_is_worth_as_long_a_queue_as_it_saves() -> None:
    assert choose(bid(A, own=5.0), bid(B, own=0.5, queue=4.4)) == B
    assert choose(bid(A, own=5.0), bid(B, own=0.5, queue=4.6)) == A


def test_among_equals_the_less_loaded_one_and_then_the_lower_name() -> None:
    assert choose(bid(A, load=0.5), bid(B, load=0.25)) == B
    assert choose(bid(B), bid(A)) == A


def test_a_conversation_stays_at_home_unless_another_is_better_by_a_clear_margin() -> None:
    assert choose(bid(A, own=1.0), bid(B, own=1.3), home=B) == B
    assert choose(bid(A, own=1.0), bid(B, own=1.4), home=B) == A
    assert choose(bid(A, own=0.0), bid(B, own=0.09), home=B) == B
    assert choose(bid(A, own=0.0), bid(B, own=0.11), home=B) == A


def test_a_conversation_whose_home_is_down_goes_where_it_costs_least() -> None:
    assert choose(bid(A, own=2.0), bid(B, own=1.0), home=C) == B


@pytest.mark.parametrize("doubt", ["trusted", "lost_here", "late", "has_room"])
@pytest.mark.parametrize("home", [None, A])
def test_one_in_doubt_is_chosen_only_if_there_is_no_other(doubt: str, home: WorkerId | None) -> None:
    doubtful = replace(bid(A, own=0.0), **{doubt: doubt in {"lost_here", "late"}})
    assert choose(doubtful, bid(B, own=99.0, queue=99.0), home=home) == B
    assert choose(doubtful, home=home) == A


def test_doubts_are_weighed_one_before_the_other() -> None:
    doubts = {"trusted": False, "lost_here": True, "late": True, "has_room": False}
    for worse, better in pairwise(doubts):
        assert choose(replace(bid(A), **{worse: doubts[worse]}), replace(bid(B), **{better: doubts[better]})) == B


def test_the_naive_rule_sees_load_alone_but_not_whom_to_avoid() -> None:
    rule = PlacementRule.LEAST_LOADED
    assert choose(bid(A, own=0.0, load=0.5), bid(B, own=9.0, load=0.4), home=A, rule=rule) == B
    assert choose(replace(bid(A), has_room=False), bid(B, load=0.1), rule=rule) == A
    assert choose(replace(bid(A), lost_here=True), bid(B, load=3.0), rule=rule) == B
    assert choose(replace(bid(A), trusted=False), bid(B, load=3.0), rule=rule) == B


@given(st.permutations([bid(A, own=1.0), bid(B, own=1.0), bid(C, own=2.0)]), st.sampled_from(PlacementRule))
def test_the_order_in_which_they_are_named_does_not_matter(bids: list[Bid], rule: PlacementRule) -> None:
    assert choose_bid(bids, rule, home=None) == A


def test_decodes_slow_each_other_and_wait_only_when_the_batch_is_full() -> None:
    waits = [predict_decode_queue(running=n, max_batch=4, alone=Seconds(8.0), crowd=Seconds(0.5)) for n in range(6)]
    assert waits == [0.0, 1.0, 2.0, 3.0, 3.0 + 9.5 / 4, 3.0 + 9.5 / 2]
