from __future__ import annotations

from typing import Any

import pytest

from pdd.core.request import HandoffMode, Route, Steering
from pdd.core.topology import HandoffRule
from pdd.core.view import RequestView
from pdd.policy.handoff import Batches, choose_handoff
from pdd.policy.route import Preparation, choose_route, prepare, should_prepare_relay
from tests.support.views import request_view


def plan(steering: Steering, *, relay_available: bool = True) -> Preparation:
    return prepare(view(steering, seconds=60, relay_available=relay_available))


def view(steering: Steering, *, seconds: float, **surroundings: Any) -> RequestView:
    missing = int(seconds * 1000)
    return request_view(steering=steering, missing=missing, backlog=0, num_others=0, rate=1000.0, **surroundings)


def handoff(
    steering: Steering, gap: int, previous: int | None = None, rounds: int = 0, **surroundings: Any
) -> HandoffMode:
    batches = Batches(gap=gap, previous_gap=previous, rounds=rounds)
    return choose_handoff(request_view(steering=steering, **surroundings), batches)


def test_without_steering_the_policies_are_free() -> None:
    made = plan(Steering())
    assert (made.prepare_relay, made.may_reroute, made.relay_floor, made.relay_cap) == (True, True, 0, None)


def test_nothing_is_prepared_at_a_relay_decode_that_is_down() -> None:
    assert not plan(Steering(), relay_available=False).prepare_relay


@pytest.mark.parametrize("after", [None, 1, 64])
def test_a_pinned_direct_never_turns_into_a_relay(after: int | None) -> None:
    made = plan(Steering(route=Route.DIRECT, handoff_after_tokens=after))
    assert (made.prepare_relay, made.may_reroute, made.relay_floor, made.relay_cap) == (False, False, 0, None)


def test_a_pinned_relay_emits_at_least_one_token() -> None:
    made = plan(Steering(route=Route.RELAY))
    assert (made.relay_floor, made.relay_cap) == (1, None)


@pytest.mark.parametrize("handoff", [None, HandoffMode.ONE_SHOT])
def test_a_hand_off_after_so_many_tokens_is_both_floor_and_cap(handoff: HandoffMode | None) -> None:
    made = plan(Steering(route=Route.RELAY, handoff=handoff, handoff_after_tokens=17))
    assert (made.relay_floor, made.relay_cap) == (17, 17)


def test_a_catch_up_after_so_many_tokens_is_only_a_floor() -> None:
    made = plan(Steering(route=Route.RELAY, handoff=HandoffMode.CATCH_UP, handoff_after_tokens=17))
    assert (made.relay_floor, made.relay_cap) == (17, None)


def test_a_pinned_route_goes_before_the_policys() -> None:
    assert choose_route(view(Steering(route=Route.DIRECT), seconds=60)).route is Route.DIRECT
    assert choose_route(view(Steering(route=Route.RELAY), seconds=0)).route is Route.RELAY


def test_a_pinned_relay_without_relay_decode_goes_direct() -> None:
    assert choose_route(view(Steering(route=Route.RELAY), seconds=60, relay_available=False)).route is Route.DIRECT


@pytest.mark.parametrize(
    ("load", "main_available", "route"),
    [(0.99, True, Route.RELAY), (1.0, True, Route.DIRECT), (1.0, False, Route.RELAY)],
)
def test_a_pinned_relay_gives_way_where_relay_decode_is_full_unless_nobody_else_decodes(
    load: float, main_available: bool, route: Route
) -> None:
    full: dict[str, Any] = {"seconds": 0, "relay_load": load, "main_available": main_available}
    pinned = view(Steering(route=Route.RELAY), **full)
    choice = choose_route(pinned)
    assert choice.route is route
    assert ("full" in choice.reason) is (route is Route.DIRECT)
    assert should_prepare_relay(pinned) is (route is Route.RELAY)
    assert choose_route(view(Steering(route=Route.DIRECT), **full)).route is Route.DIRECT


def test_a_pinned_relay_is_prepared_however_short_the_wait_as_long_as_there_is_relay_decode() -> None:
    assert should_prepare_relay(view(Steering(route=Route.RELAY), seconds=0))
    assert not should_prepare_relay(view(Steering(route=Route.RELAY), seconds=60, relay_available=False))
    assert not should_prepare_relay(view(Steering(), seconds=0))
    assert should_prepare_relay(view(Steering(), seconds=60))


def test_without_a_pin_the_predicted_wait_decides() -> None:
    assert choose_route(view(Steering(), seconds=2.1)).route is Route.RELAY
    assert choose_route(view(Steering(), seconds=1.9)).route is Route.DIRECT


def test_the_hand_off_follows_the_threshold_unless_it_is_pinned() -> None:
    assert handoff(Steering(), 64) is HandoffMode.ONE_SHOT
    assert handoff(Steering(), 65) is HandoffMode.CATCH_UP
    assert handoff(Steering(handoff=HandoffMode.ONE_SHOT), 1000) is HandoffMode.ONE_SHOT
    assert handoff(Steering(handoff=HandoffMode.CATCH_UP), 2) is HandoffMode.CATCH_UP


def test_even_a_pinned_catch_up_ends() -> None:
    pinned = Steering(handoff=HandoffMode.CATCH_UP)
    assert handoff(pinned, 30, previous=40, rounds=1) is HandoffMode.ONE_SHOT
    assert handoff(pinned, 0, previous=40, rounds=1) is HandoffMode.ONE_SHOT
    assert handoff(pinned, 4, previous=40, rounds=3) is HandoffMode.ONE_SHOT
    assert handoff(pinned, 4, previous=40, rounds=2) is HandoffMode.CATCH_UP


def test_the_hand_off_follows_relay_decodes_load_unless_it_is_pinned() -> None:
    assert handoff(Steering(), 65, relay_load=0.8) is HandoffMode.ONE_SHOT
    pinned = Steering(handoff=HandoffMode.CATCH_UP)
    assert handoff(pinned, 65, relay_load=0.8) is HandoffMode.CATCH_UP
    assert handoff(pinned, 65, handoff=HandoffRule.ONE_SHOT) is HandoffMode.CATCH_UP
    assert handoff(Steering(), 65, handoff=HandoffRule.ONE_SHOT) is HandoffMode.ONE_SHOT
