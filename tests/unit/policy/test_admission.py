"""Who comes next, who may wait, and what those turned away are told."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pdd.core.ids import TenantId
from pdd.core.request import Role
from pdd.core.units import Seconds
from pdd.policy.admission import (
    ALONE_LOAD,
    MAX_RETRY_AFTER,
    MIN_RETRY_AFTER,
    DrainRate,
    Entry,
    FairLine,
    RetryAdvice,
    ShedReason,
    who_is_missing,
)
from tests.support.views import role

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")


def line(*, places: int = 1, waiting: int = 100, **weights: float) -> FairLine:
    return FairLine(
        num_places=places,
        max_waiting=waiting,
        weights={TenantId(name): weight for name, weight in weights.items()},
    )


def enter(fair: FairLine, tenant: TenantId, cost: int = 1, times: int = 1) -> list[Entry]:
    entries = [Entry(tenant, cost) for _ in range(times)]
    for entry in entries:
        assert fair.why_not(tenant) is None
        fair.enter(entry)
    return entries


def serve(fair: FairLine, running: Entry, times: int) -> list[TenantId]:
    """Who is called one after the other as each ends, the first being ``running``."""
    called: list[TenantId] = []
    entry: Entry | None = running
    for _ in range(times):
        assert entry is not None
        entry = fair.leave(entry)
        if entry is not None:
            called.append(entry.tenant)
    return called


def missing(*, prefill: bool = True, main: bool = True, relay: bool = True, load: float = 0.0) -> str | None:
    return who_is_missing(
        {Role.PREFILL: role(up=prefill), Role.MAIN_DECODE: role(up=main), Role.RELAY_DECODE: role(up=relay, load=load)}
    )


def test_without_prefill_nothing_begins():
    assert missing(prefill=False) == "no prefill worker is up"


def test_with_main_decode_nobody_else_is_missed_however_full_relay_decode_is():
    assert (missing(load=2.0), missing(relay=False)) == (None, None)


@pytest.mark.parametrize(("load", "is_missing"), [(0.0, False), (ALONE_LOAD - 0.01, False), (ALONE_LOAD, True)])
def test_without_main_decode_relay_decode_takes_whole_answers_while_it_has_room(load: float, is_missing: bool):
    why = missing(main=False, load=load)
    assert (why is not None) is is_missing
    assert why is None or "no room for whole answers" in why


def test_without_anybody_that_decodes_main_decode_is_missing():
    why = missing(main=False, relay=False)
    assert why is not None
    assert why.startswith("no main decode worker is up")


def test_whoever_finds_a_free_place_has_it_at_once():
    fair = line(places=2)
    first, second, third = enter(fair, A, times=3)
    assert [fair.runs(entry) for entry in (first, second, third)] == [True, True, False]
    assert (fair.num_running, fair.num_waiting, fair.waiting_cost) == (2, 1, 1)


def test_within_a_tenant_requests_come_in_order_of_arrival():
    fair = line()
    first, second, third = enter(fair, A, times=3)
    assert fair.leave(first) is second
    assert fair.leave(second) is third
    assert fair.leave(third) is None


def test_tenants_of_equal_weight_take_turns_however_many_requests_each_has():
    fair = line()
    (running,) = enter(fair, A)
    enter(fair, A, times=10)
    enter(fair, B, times=3)
    assert serve(fair, running, 6) == [B, A, B, A, B, A]


def test_a_dear_request_costs_its_tenant_as_many_turns_as_cheap_ones():
    fair = line()
    (running,) = enter(fair, C)
    enter(fair, A, cost=10, times=3)
    enter(fair, B, cost=1, times=30)
    called = serve(fair, running, 22)
    assert Counter(called) == {A: 2, B: 20}


def test_weights_share_what_is_served():
    fair = line(a=3.0, b=1.0)
    (running,) = enter(fair, C)
    enter(fair, A, times=40)
    enter(fair, B, times=20)
    assert Counter(serve(fair, running, 40)) == {A: 30, B: 10}


def test_a_tenant_saves_nothing_up_while_it_is_idle():
    fair = line()
    (running,) = enter(fair, A)
    enter(fair, A, times=30)
    for _ in range(20):
        running = fair.leave(running)
    enter(fair, B, times=10)
    assert Counter(serve(fair, running, 10)) == {A: 5, B: 5}


def test_a_tenant_that_was_served_a_lot_is_not_first_again_just_because_it_was_away():
    fair = line()
    (running,) = enter(fair, C)
    enter(fair, A, cost=1000)
    enter(fair, B, cost=100, times=30)
    assert fair.leave(running).tenant is A
    (dear,) = fair._running
    running = fair.leave(dear)
    enter(fair, A)
    called = serve(fair, running, 15)
    assert called.index(A) >= 8


def test_a_request_that_leaves_the_line_is_never_called_and_costs_its_tenant_nothing():
    fair = line()
    (running,) = enter(fair, C)
    waiting = enter(fair, A, cost=100, times=5)
    enter(fair, B, cost=1, times=4)
    assert fair.leave(waiting[0]) is None
    assert fair.waiting_cost == 404
    assert serve(fair, running, 3) == [A, B, B]


def test_leaving_twice_gives_no_second_place_away():
    fair = line()
    running, _, _ = enter(fair, A, times=3)
    assert fair.leave(running) is not None
    assert fair.leave(running) is None
    assert (fair.num_running, fair.num_waiting) == (1, 1)


def test_whoever_is_gone_with_its_tenant_may_leave_once_more():
    fair = line()
    (entry,) = enter(fair, A)
    assert [fair.leave(entry) for _ in range(2)] == [None, None]
    assert (fair.num_running, fair.num_waiting) == (0, 0)


def test_a_full_line_takes_nobody():
    fair = line(waiting=2)
    enter(fair, A, times=3)
    assert fair.why_not(A) is ShedReason.QUEUE_FULL
    assert fair.why_not(B) is ShedReason.QUEUE_FULL


def test_a_sole_tenant_may_fill_the_line():
    fair = line(waiting=4)
    enter(fair, A, times=5)
    assert fair.why_not(A) is ShedReason.QUEUE_FULL


def test_a_tenant_beside_others_has_its_share_of_the_line_even_while_they_are_away():
    fair = line(waiting=8, a=1.0, b=3.0)
    enter(fair, A, times=1 + 2)
    assert fair.why_not(A) is ShedReason.TENANT_LIMIT
    enter(fair, B, times=6)
    assert fair.why_not(B) is ShedReason.QUEUE_FULL


def test_a_tenant_that_was_not_known_beforehand_counts_while_it_is_here():
    fair = line(waiting=4)
    (running,) = enter(fair, B)
    enter(fair, A, times=2)
    assert fair.why_not(A) is ShedReason.TENANT_LIMIT
    fair.leave(running)
    assert fair.why_not(A) is None


def test_even_the_smallest_share_is_one_request():
    fair = line(waiting=2, a=0.001, b=1.0)
    enter(fair, A, times=2)
    assert fair.why_not(A) is ShedReason.TENANT_LIMIT


def test_without_a_line_nobody_waits():
    fair = line(waiting=0)
    enter(fair, A)
    assert fair.why_not(B) is ShedReason.QUEUE_FULL


def test_what_is_ahead_is_the_own_line_and_what_is_served_beside_it():
    fair = line()
    enter(fair, C)
    enter(fair, A, cost=10, times=10)
    enter(fair, B, cost=5, times=2)
    assert fair.cost_ahead_of(A) == 100 + 10
    assert fair.cost_ahead_of(B) == 10 + 10
    assert fair.cost_ahead_of(C) == 0


def test_tenants_that_are_gone_are_forgotten():
    fair = line()
    for number in range(1000):
        (entry,) = enter(fair, TenantId(f"t{number}"))
        fair.leave(entry)
    assert len(fair._accounts) == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_places_are_full_while_somebody_waits_and_all_books_agree(seed: int):
    chance = random.Random(seed)
    fair = line(places=3, waiting=12, a=1.0, b=2.0, c=0.5)
    here: list[Entry] = []
    for _ in range(2000):
        if chance.random() < 0.6:
            tenant = chance.choice([A, B, C])
            if fair.why_not(tenant) is None:
                here += enter(fair, tenant, cost=chance.randint(1, 1000))
        elif here:
            fair.leave(here.pop(chance.randrange(len(here))))
        running = [entry for entry in here if fair.runs(entry)]
        assert len(running) == fair.num_running == min(3, len(here))
        assert fair.num_waiting == len(here) - len(running) <= 12
        assert fair.waiting_cost == sum(entry.cost for entry in here if not fair.runs(entry))
    for entry in here:
        fair.leave(entry)
    assert (fair.num_running, fair.num_waiting, fair.waiting_cost) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_a_backlogged_tenant_is_served_its_share_to_within_one_request(seed: int):
    chance = random.Random(seed)
    fair = line(waiting=10**6, a=1.0, b=2.0, c=4.0)
    costs: Counter[TenantId] = Counter()
    (entry,) = enter(fair, TenantId("first"))
    for _ in range(700):
        for tenant in (A, B, C):
            enter(fair, tenant, cost=chance.randint(1, 100))
    for _ in range(500):
        entry = fair.leave(entry)
        assert entry is not None
        costs[entry.tenant] += entry.cost
        per_weight = [costs[tenant] / weight for tenant, weight in ((A, 1.0), (B, 2.0), (C, 4.0))]
        assert max(per_weight) - min(per_weight) <= 200


# The rate, and the advice ------------------------------------------------------------------------------------------------


def test_a_rate_is_known_once_something_was_completed_under_load():
    drain = DrainRate()
    drain.record(Seconds(0.0), completed=500, loaded=False)
    assert drain.per_second is None
    drain.record(Seconds(10.0), completed=0, loaded=True)
    drain.record(Seconds(10.5), completed=50, loaded=True)
    assert drain.per_second is None
    drain.record(Seconds(12.0), completed=150, loaded=True)
    assert drain.per_second == pytest.approx(100, rel=0.05)


def test_time_without_load_is_no_time_of_slowness():
    drain = DrainRate()
    for second in range(10):
        drain.record(Seconds(second), completed=100, loaded=True)
    drain.record(Seconds(10.0), completed=100, loaded=False)
    before = drain.per_second
    drain.record(Seconds(1000.0), completed=1, loaded=False)
    assert drain.per_second == before == pytest.approx(100, rel=0.05)


def test_the_rate_follows_what_is_measured_within_a_minute():
    drain = DrainRate()
    for second in range(100):
        drain.record(Seconds(second), completed=100, loaded=True)
    for second in range(100, 160):
        drain.record(Seconds(second), completed=10, loaded=True)
    assert drain.per_second == pytest.approx(10, rel=0.8)


def measured(rate: int = 100) -> DrainRate:
    drain = DrainRate()
    for second in range(60):
        drain.record(Seconds(second), completed=rate, loaded=True)
    return drain


def test_advice_is_the_backlog_over_the_rate_within_bounds():
    advice = RetryAdvice(measured(100), unmeasured=Seconds(30.0))
    assert advice.wait_for(1000) == pytest.approx(10, rel=0.1)
    assert advice.wait_for(1) == MIN_RETRY_AFTER
    assert advice.wait_for(10**9) == MAX_RETRY_AFTER


def test_before_anything_was_measured_advice_is_as_long_as_one_may_wait():
    assert RetryAdvice(DrainRate(), unmeasured=Seconds(7.0)).take_turn(Seconds(0.0), ahead=1, cost=1) == 7
    assert RetryAdvice(DrainRate(), unmeasured=Seconds(900.0)).take_turn(Seconds(0.0), ahead=1, cost=1) == 60


def test_those_turned_away_together_are_told_to_come_one_after_the_other():
    advice = RetryAdvice(measured(100), unmeasured=Seconds(30.0))
    told = [advice.take_turn(Seconds(60.0), ahead=1000, cost=200) for _ in range(5)]
    assert told == pytest.approx([10, 12, 14, 16, 18], rel=0.1)
    later = advice.take_turn(Seconds(65.0), ahead=1000, cost=200)
    assert later == pytest.approx(15, rel=0.1)


def test_a_flood_of_the_turned_away_is_forgotten_once_it_was_over_for_a_minute():
    advice = RetryAdvice(measured(100), unmeasured=Seconds(30.0))
    for _ in range(100_000):
        assert advice.take_turn(Seconds(60.0), ahead=1000, cost=200) <= MAX_RETRY_AFTER
    assert advice.take_turn(Seconds(130.0), ahead=1000, cost=200) == pytest.approx(10, rel=0.1)
