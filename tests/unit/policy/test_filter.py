import pytest

from pdd.policy.filter import FilterShare, FilterView, should_filter


def _filter(**changes):
    view = {
        "predicted_wait": 10.1,
        "likely_tokens": 400,
        "itl": 0.025,
        "filtered_last_turn": False,
        "within_share": True,
        "relay_load": 0.5,
        "max_load": 0.75,
    }
    return should_filter(FilterView(**{**view, **changes}))


@pytest.mark.parametrize(("wait", "filtered"), [(10.1, True), (10.0, False), (None, False)])
def test_who_is_done_before_main_could_begin_stays_at_relay_decode(wait, filtered):
    assert _filter(predicted_wait=wait) is filtered


@pytest.mark.parametrize(
    "changes",
    [
        {"itl": None},
        {"filtered_last_turn": True},
        {"within_share": False},
        {"relay_load": 0.76},
        {"likely_tokens": 500},
    ],
)
def test_but_only_within_every_bound(changes):
    assert not _filter(**changes)


def test_a_relay_decode_as_full_as_allowed_may_still_filter():
    assert _filter(relay_load=0.75)


def test_the_share_is_kept_from_the_first_request_on():
    share, filtered = FilterShare(0.04), 0
    for number in range(1, 2001):
        share.saw_request()
        if share.allows_one:
            share.filtered_one()
            filtered += 1
        assert filtered <= 0.04 * number + 1e-6
    assert filtered >= 79


def test_only_a_few_are_saved_up():
    share = FilterShare(0.5)
    for _ in range(100):
        share.saw_request()
    in_a_row = 0
    while share.allows_one:
        share.filtered_one()
        in_a_row += 1
    assert in_a_row == 4


def test_a_share_of_nothing_filters_nobody():
    share = FilterShare(0.0)
    for _ in range(100):
        share.saw_request()
    assert not share.allows_one
