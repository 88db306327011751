from __future__ import annotations

from dataclasses import replace

import pytest

from pdd.core.request import HandoffMode, Route
from pdd.core.topology import HandoffRule, PolicyTable
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.policy.route import RouteView
from pdd.protocol.relay import AskHandoff, RelayPlan
from pdd.router.base import Steering
from pdd.router.driver.request.choices import decide_handoff, decide_route, plan_relay, should_prepare
from tests.support.worlds import SETTINGS, make_request

POLICY = PolicyTable()


def plan(steering: Steering, *, relay_up: bool = True) -> RelayPlan:
    return plan_relay(make_request(steering=steering), prepare_relay=relay_up, settings=SETTINGS)


def view(*, seconds: float, relay_available: bool = True) -> RouteView:
    return RouteView(
        missing=Bytes(int(seconds * 1000)),
        backlog=Bytes(0),
        num_others=0,
        rate=BytesPerSecond(1000.0),
        prompt_bytes=Bytes(100_000),
        relay_available=relay_available,
        threshold=Seconds(2.0),
    )


def test_without_steering_the_policies_are_free() -> None:
    made = plan(Steering())
    assert (made.prepare_relay, made.may_reroute, made.relay_floor, made.relay_cap) == (True, True, 0, None)


def test_nothing_is_prepared_at_a_relay_decode_that_is_down() -> None:
    assert not plan(Steering(), relay_up=False).prepare_relay


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
    assert decide_route(Steering(route=Route.DIRECT), view(seconds=60)).route is Route.DIRECT
    assert decide_route(Steering(route=Route.RELAY), view(seconds=0)).route is Route.RELAY


def test_a_pinned_relay_without_relay_decode_goes_direct() -> None:
    assert decide_route(Steering(route=Route.RELAY), view(seconds=60, relay_available=False)).route is Route.DIRECT


@pytest.mark.parametrize(
    ("load", "main_available", "route"),
    [(0.99, True, Route.RELAY), (1.0, True, Route.DIRECT), (1.0, False, Route.RELAY)],
)
def test_a_pinned_relay_gives_way_where_relay_decode_is_full_unless_nobody_else_decodes(
    load: float, main_available: bool, route: Route
) -> None:
    full = replace(view(seconds=0), relay_load=load, main_available=main_available)
    pinned = Steering(route=Route.RELAY)
    choice = decide_route(pinned, full)
    assert choice.route is route
    assert ("full" in choice.reason) is (route is Route.DIRECT)
    assert should_prepare(pinned, full) is (route is Route.RELAY)
    assert decide_route(Steering(route=Route.DIRECT), full).route is Route.DIRECT


def test_a_pinned_relay_is_prepared_however_short_the_wait_as_long_as_there_is_relay_decode() -> None:
    assert should_prepare(Steering(route=Route.RELAY), view(seconds=0))
    assert not should_prepare(Steering(route=Route.RELAY), view(seconds=60, relay_available=False))
    assert not should_prepare(Steering(), view(seconds=0))
    assert should_prepare(Steering(), view(seconds=60))


def test_without_a_pin_the_predicted_wait_decides() -> None:
    assert decide_route(Steering(), view(seconds=2.1)).route is Route.RELAY
    assert decide_route(Steering(), view(seconds=1.9)).route is Route.DIRECT


def ask(gap: int, previous: int | None = None, rounds: int = 0) -> AskHandoff:
    return AskHandoff(gap=gap, previous_gap=previous, rounds=rounds)


def test_the_hand_off_follows_the_threshold_unless_it_is_pinned() -> None:
    assert decide_handoff(Steering(), ask(64), POLICY) is HandoffMode.ONE_SHOT
    assert decide_handoff(Steering(), ask(65), POLICY) is HandoffMode.CATCH_UP
    assert decide_handoff(Steering(handoff=HandoffMode.ONE_SHOT), ask(1000), POLICY) is HandoffMode.ONE_SHOT
    assert decide_handoff(Steering(handoff=HandoffMode.CATCH_UP), ask(2), POLICY) is HandoffMode.CATCH_UP


def test_even_a_pinned_catch_up_ends() -> None:
    pinned = Steering(handoff=HandoffMode.CATCH_UP)
    assert decide_handoff(pinned, ask(30, previous=40, rounds=1), POLICY) is HandoffMode.ONE_SHOT
    assert decide_handoff(pinned, ask(0, previous=40, rounds=1), POLICY) is HandoffMode.ONE_SHOT
    assert decide_handoff(pinned, ask(4, previous=40, rounds=3), POLICY) is HandoffMode.ONE_SHOT
    assert decide_handoff(pinned, ask(4, previous=40, rounds=2), POLICY) is HandoffMode.CATCH_UP


def test_the_hand_off_follows_relay_decodes_load_unless_it_is_pinned() -> None:
    assert decide_handoff(Steering(), ask(65), POLICY, relay_load=0.8) is HandoffMode.ONE_SHOT
    pinned = Steering(handoff=HandoffMode.CATCH_UP)
    assert decide_handoff(pinned, ask(65), POLICY, relay_load=0.8) is HandoffMode.CATCH_UP
    rival = PolicyTable(handoff=HandoffRule.ONE_SHOT)
    assert decide_handoff(pinned, ask(65), rival) is HandoffMode.CATCH_UP
    assert decide_handoff(Steering(), ask(65), rival) is HandoffMode.ONE_SHOT
