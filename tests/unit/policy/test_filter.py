import pytest

from pdd.core.request import Route, Steering
from pdd.core.topology import FilterRule
from pdd.policy.filter import should_filter
from tests.support.views import request_view


def _filter(**changes):
    wait = changes.pop("predicted_wait", 10.1)
    usual = {"filter_rule": FilterRule.BACKGROUND, "itl": 0.025, "relay_load": 0.5, "may_filter": True}
    return should_filter(request_view(**{**usual, **changes}), wait)


@pytest.mark.parametrize(("wait", "filtered"), [(10.1, True), (10.0, False), (None, False)])
def test_who_is_done_before_main_could_begin_stays_at_relay_decode(wait, filtered):
    assert _filter(predicted_wait=wait) is filtered


@pytest.mark.parametrize(
    "changes",
    [
        {"itl": None},
        {"filtered_last_turn": True},
        {"may_filter": False},
        {"relay_load": 0.76},
        {"likely_tokens": 500},
        {"filter_rule": FilterRule.OFF},
        {"main_available": False},
        {"route": Route.DIRECT},
        {"route": Route.RELAY},
        {"steering": Steering(route=Route.RELAY)},
        {"steering": Steering(handoff_after_tokens=3)},
    ],
)
def test_but_only_within_every_bound(changes):
    assert not _filter(**changes)


def test_a_relay_decode_as_full_as_allowed_may_still_filter():
    assert _filter(relay_load=0.75)
