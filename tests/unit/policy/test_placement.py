from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.ids import WorkerId
from pdd.core.request import Role
from pdd.core.topology import PlacementRule, PolicyTable
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.core.view import CandidateView, LinkView, PaceView, PlacementView, WorkerView
from pdd.policy.placement import (
    BLOCK_UNKNOWN,
    FULL_BATCH_SLOWDOWN,
    NUM_TOKENS_UNKNOWN,
    RATE_UNKNOWN,
    TOKEN_UNKNOWN,
    Bid,
    choose_bid,
    choose_worker,
    make_bid,
    predict_decode_queue,
)

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


# Bids -----------------------------------------------------------------------------------------------------------------

P, MD = Role.PREFILL, Role.MAIN_DECODE
MEASURED = PaceView(unit_s=Seconds(0.1), alone_s=Seconds(0.02), crowd_s=Seconds(0.005), typical_work=50.0)


def candidate(
    name: WorkerId = A, *, missing: int = 0, link: LinkView | None = None, lost_here: bool = False, **worker: Any
) -> CandidateView:
    """An idle worker, unless ``worker`` says otherwise."""
    idle = WorkerView(
        name=name, num_seats=0, max_batch=4, num_missing=0, free_blocks=100, slowness=1.0, late=False, trusted=True
    )
    return CandidateView(worker=replace(idle, **worker), num_missing=missing, link=link, lost_here=lost_here)


def link(rate: float | None) -> LinkView:
    known = None if rate is None else BytesPerSecond(rate)
    return LinkView(rate=known, measured_rate=known, backlog=Bytes(0), num_orders=0)


def question(
    *candidates: CandidateView,
    role: Role = MD,
    pace: PaceView = MEASURED,
    num_blocks: int = 0,
    home: WorkerId | None = None,
    rule: PlacementRule = PlacementRule.PREFIX,
) -> PlacementView:
    """Blocks of a thousand bytes."""
    return PlacementView(
        role=role,
        candidates=candidates,
        pace=pace,
        num_blocks=num_blocks,
        block_bytes=Bytes(1000),
        home=home,
        settings=PolicyTable(placement=rule),
    )


def bid_of(candidate: CandidateView, **surroundings: object) -> Bid:
    return make_bid(candidate, question(candidate, **surroundings))  # type: ignore[arg-type]


def test_prefill_costs_its_missing_blocks_after_all_blocks_and_requests_before_it() -> None:
    made = bid_of(candidate(missing=9, num_missing=19, num_seats=2), role=P)
    assert (made.own, made.queue) == (pytest.approx(1.0), pytest.approx(2.1))


def test_a_slow_prefill_costs_more_itself_and_in_its_queue() -> None:
    made = bid_of(candidate(missing=9, num_missing=19, num_seats=2, slowness=3.0), role=P)
    assert (made.own, made.queue) == (pytest.approx(3.0), pytest.approx(6.3))


def test_a_decode_costs_its_tokens_alone_and_what_those_beside_it_cost_it_and_it_them() -> None:
    made = bid_of(candidate(num_seats=2))
    assert (made.own, made.queue) == (pytest.approx(50 * 0.02), pytest.approx(50 * 0.005 * 2 * 2))


def test_a_slow_decoder_costs_more_alone_and_in_a_crowd() -> None:
    made = bid_of(candidate(num_seats=2, slowness=3.0))
    assert (made.own, made.queue) == (pytest.approx(3.0), pytest.approx(3.0))


def test_what_a_decoder_lacks_costs_its_time_on_the_link() -> None:
    lacking = candidate(missing=8)
    assert bid_of(replace(lacking, link=link(4000.0))).own == pytest.approx(2.0 + 1.0)
    assert bid_of(replace(lacking, link=link(1000.0))).own == pytest.approx(8.0 + 1.0)
    for unknown in (None, link(None), link(0.0)):
        assert bid_of(replace(lacking, link=unknown)).own == pytest.approx(8000 / RATE_UNKNOWN + 1.0)
    assert bid_of(candidate(link=link(1000.0))).own == pytest.approx(1.0), "it lacks nothing"


def test_before_anything_was_measured_guesses_stand_in() -> None:
    computing = bid_of(candidate(missing=9), role=P, pace=PaceView())
    assert computing.own == pytest.approx(10 * BLOCK_UNKNOWN)
    decoding = bid_of(candidate(num_seats=1), pace=PaceView())
    assert decoding.own == pytest.approx(NUM_TOKENS_UNKNOWN * TOKEN_UNKNOWN)
    assert decoding.queue == pytest.approx(2 * NUM_TOKENS_UNKNOWN * TOKEN_UNKNOWN * FULL_BATCH_SLOWDOWN / 4)


def test_load_is_counted_by_what_runs_at_once() -> None:
    assert bid_of(candidate(num_seats=3, max_batch=12)).load == 0.25


@pytest.mark.parametrize(
    ("role", "free", "has_room"),
    [(MD, 51, True), (MD, 50, True), (MD, 49, False), (MD, None, False), (P, 0, True), (P, None, False)],
)
def test_a_decoders_node_must_have_room_and_prefills_must_only_be_there(
    role: Role, free: int | None, has_room: bool
) -> None:
    assert bid_of(candidate(free_blocks=free), role=role, num_blocks=50).has_room is has_room


@pytest.mark.parametrize("doubt", ["trusted", "lost_here", "late"])
@pytest.mark.parametrize("rule", PlacementRule)
def test_a_candidate_in_doubt_is_chosen_only_if_there_is_no_other(doubt: str, rule: PlacementRule) -> None:
    doubtful = candidate(**{doubt: doubt != "trusted"})
    other = candidate(B, num_seats=3)
    heeded = rule is PlacementRule.PREFIX or doubt != "late"
    assert choose_worker(question(doubtful, other, rule=rule)) == (B if heeded else A)
    assert choose_worker(question(doubtful, rule=rule)) == A


def test_a_conversation_goes_back_to_its_home() -> None:
    candidates = (candidate(), candidate(B))
    assert choose_worker(question(*candidates)) == A
    assert choose_worker(question(*candidates, home=B)) == B
