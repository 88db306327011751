import pytest

from pdd.core.request import Route
from pdd.policy.route import RouteView, choose_route


def _choose(**changes):
    view = {
        "missing": 10_000_000,
        "backlog": 10_000_000,
        "rate": 2_500_000.0,
        "prompt_bytes": 28_000_000,
        "relay_available": True,
        "threshold": 2.0,
    }
    return choose_route(RouteView(**{**view, **changes}))


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
    choice = _choose(relay_available=False)
    assert (choice.route, choice.predicted_wait) == (Route.DIRECT, None)


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
