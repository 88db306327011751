import pytest

from pdd.core.request import Route, Steering
from pdd.core.topology import FilterRule, RouteRule
from pdd.policy.route import choose_route, predicted_wait, prepare, priced_threshold, should_prepare_relay
from tests.support.views import request_view


def _choose(**changes):
    return choose_route(request_view(**changes))


def test_a_long_wait_relays_and_says_why():
    choice = _choose()
    assert (choice.route, choice.predicted_wait) == (Route.RELAY, 4.0)
    assert choice.reason == "main decode would wait 4.00 s > 2.00 s for 10.0 MB"


def test_a_short_wait_goes_to_main_and_says_why():
    choice = _choose(missing=1_000_000, backlog=1_000_000)
    assert (choice.route, choice.predicted_wait) == (Route.DIRECT, 0.4)
    assert choice.reason == "main decode would wait 0.40 s <= 2.00 s for 1.0 MB"


@pytest.mark.parametrize(("missing", "route"), [(5_000_000, Route.DIRECT), (5_000_001, Route.RELAY)])
def test_a_relay_pays_only_above_the_threshold(missing, route):
    assert _choose(missing=missing, backlog=missing).route is route


def test_without_relay_decode_there_is_no_choice():
    choice = _choose(relay_available=False, main_available=False)
    assert (choice.route, choice.predicted_wait) == (Route.DIRECT, 4.0)


def test_a_full_hit_goes_to_main_even_over_a_line_of_unknown_rate():
    choice = _choose(missing=0, rate=None)
    assert (choice.route, choice.predicted_wait) == (Route.DIRECT, 0.0)


def test_main_that_has_not_answered_counts_as_lacking_everything():
    assert _choose(missing=None, backlog=0).predicted_wait == 28_000_000 / 2_500_000


def test_a_prompt_without_a_full_block_goes_to_main():
    assert _choose(missing=None, prompt_bytes=0).route is Route.DIRECT


def test_a_line_of_unknown_rate_relays():
    choice = _choose(rate=None)
    assert (choice.route, choice.predicted_wait) == (Route.RELAY, None)


def test_a_line_that_stands_still_relays():
    choice = _choose(rate=0.0)
    assert (choice.route, choice.predicted_wait, choice.reason) == (Route.RELAY, None, "the line stands still")


def test_other_requests_bytes_count():
    assert _choose(missing=4_000_000, backlog=4_000_000).route is Route.DIRECT
    assert _choose(missing=4_000_000, backlog=9_000_000).route is Route.RELAY


def test_every_other_transfer_takes_its_share_of_the_line():
    assert _choose(missing=2_000_000, backlog=20_000_000, num_others=1).predicted_wait == pytest.approx(1.6)
    assert _choose(missing=2_000_000, backlog=20_000_000, num_others=5).predicted_wait == pytest.approx(4.8)


@pytest.mark.parametrize(("load", "threshold"), [(0.0, 2.0), (0.5, 4.0), (0.75, 8.0), (1.0, None), (1.2, None)])
def test_a_place_at_relay_decode_costs_more_the_fewer_are_left(load, threshold):
    assert priced_threshold(request_view(relay_load=load)) == threshold


def test_the_rule_that_keeps_relays_knows_no_price():
    assert priced_threshold(request_view(relay_load=1.2, rule=RouteRule.RELAY_ONLY)) == 2.0
    assert _choose(relay_load=1.2, rule=RouteRule.RELAY_ONLY).route is Route.RELAY


def test_those_that_gain_most_relay_when_relay_decode_is_short_of_room():
    assert _choose(relay_load=0.4).route is Route.RELAY
    assert _choose(relay_load=0.6).route is Route.DIRECT
    assert _choose(relay_load=0.6, missing=20_000_000, backlog=20_000_000).route is Route.RELAY


@pytest.mark.parametrize("rate", [0.0, None])
def test_a_full_relay_decode_takes_nobody(rate):
    choice = _choose(relay_load=1.0, rate=rate)
    assert (choice.route, choice.reason) == (Route.DIRECT, "relay decode is full")


@pytest.mark.parametrize(("missing", "route"), [(6_250_000, Route.DIRECT), (6_250_001, Route.RELAY)])
def test_who_was_told_to_wait_turns_only_when_things_got_clearly_worse(missing, route):
    assert _choose(missing=missing, backlog=missing, route=Route.DIRECT).route is route


def test_without_main_decode_cluster_a_serves_alone():
    choice = _choose(main_available=False, missing=0)
    assert (choice.route, choice.reason) == (Route.RELAY, "no main decode worker is available")


@pytest.mark.parametrize(("hit_rate", "route"), [(0.0, Route.RELAY), (0.89, Route.RELAY), (0.9, Route.DIRECT)])
def test_by_the_rival_rule_the_hit_rate_alone_decides(hit_rate, route):
    for missing in (0, 10_000_000):
        assert _choose(rule=RouteRule.HIT_RATE, hit_rate=hit_rate, missing=missing).route is route


def test_by_the_rule_direct_nobody_relays():
    choice = _choose(rule=RouteRule.DIRECT)
    assert (choice.route, choice.predicted_wait) == (Route.DIRECT, 4.0)


@pytest.mark.parametrize(
    ("changes", "prepared"),
    [
        ({}, True),
        ({"missing": 2_500_001, "backlog": 2_500_001}, True),
        ({"missing": 2_500_000, "backlog": 2_500_000}, False),
        ({"missing": 2_600_000, "backlog": 2_600_000, "relay_load": 0.5}, False),
        ({"missing": 0}, False),
        ({"rate": None}, True),
        ({"rate": None, "relay_load": 1.0}, False),
        ({"relay_available": False, "main_available": False}, False),
        ({"missing": 0, "main_available": False}, True),
        ({"rule": RouteRule.DIRECT}, False),
        ({"rule": RouteRule.RELAY_ONLY}, True),
        ({"rule": RouteRule.HIT_RATE, "hit_rate": 0.8, "missing": 0}, True),
        ({"rule": RouteRule.HIT_RATE, "hit_rate": 0.9}, False),
    ],
)
def test_relay_decode_gets_the_prompt_ahead_if_a_relay_is_likely(changes, prepared):
    assert should_prepare_relay(request_view(**changes)) is prepared


def test_a_source_that_says_nothing_is_slower_than_it_was_by_each_second():
    for idle, seconds in ((0.0, 4.0), (0.9, 4.0), (1.0, 10.0), (5.0, 50.0)):
        view = request_view(missing=10, backlog=10, rate=2.5, prompt_bytes=10, idle=idle)
        assert predicted_wait(view) == pytest.approx(seconds)


def test_a_source_of_unknown_rate_that_says_nothing_stays_unknown():
    assert predicted_wait(request_view(rate=None, idle=5.0)) is None


# From beginning to end ------------------------------------------------------------------------------------------------


def test_what_prefill_ends_prepares_no_relay():
    assert prepare(request_view(max_tokens=2)).prepare_relay
    assert not prepare(request_view(max_tokens=1)).prepare_relay


def test_who_hits_at_main_decode_prepares_no_relay():
    assert not prepare(request_view(missing=0)).prepare_relay


def test_main_decode_is_prepared_unless_the_rule_keeps_the_relay():
    for rule in RouteRule:
        made = prepare(request_view(rule=rule))
        assert (made.prepare_main, made.keeps_relay) == (rule is not RouteRule.RELAY_ONLY, rule is RouteRule.RELAY_ONLY)


def test_the_rule_keeps_neither_those_that_would_not_relay_nor_those_that_pinned_it():
    assert not prepare(request_view(rule=RouteRule.RELAY_ONLY, missing=0)).keeps_relay
    assert not prepare(request_view(rule=RouteRule.RELAY_ONLY, steering=Steering(route=Route.RELAY))).keeps_relay


@pytest.mark.parametrize(("available", "route"), [(True, Route.RELAY_ONLY), (False, Route.DIRECT)])
def test_a_relay_that_the_rule_keeps_stays_where_it_is_while_somebody_is_there(available, route):
    choice = _choose(keeps_relay=True, relay_available=available, missing=0)
    assert (choice.route, choice.reason, choice.relay_cap) == (route, "the rule keeps relays here", None)
    assert not choice.filtered


SINGULAR = {"filter_rule": FilterRule.BACKGROUND, "may_filter": True, "itl": 0.001, "likely_tokens": 10}


def test_a_relay_that_is_done_before_main_could_begin_is_filtered_and_says_why():
    choice = _choose(**SINGULAR)
    assert (choice.route, choice.filtered, choice.predicted_wait) == (Route.RELAY_ONLY, True, 4.0)
    assert choice.reason.endswith("; relay decode will be done by then")


def test_who_would_not_relay_is_not_filtered():
    choice = _choose(**SINGULAR, threshold=4.0)
    assert (choice.route, choice.filtered) == (Route.DIRECT, False)


def test_a_relay_is_capped_while_relay_decode_is_busy():
    assert _choose(relay_load=0.3, one_shot_load=0.4, itl=0.02).relay_cap is None
    assert _choose(relay_load=0.45, one_shot_load=0.4, itl=0.02).relay_cap == 400
    assert _choose(relay_load=0.45, one_shot_load=0.4, itl=0.02, missing=0).relay_cap is None
