import pytest

from pdd.belief.traffic import MIN_ANSWERS, WINDOW, FilterShare, OutputLengths


def _lengths(*tokens):
    lengths = OutputLengths()
    for number in tokens:
        lengths.add(number)
    return lengths


def test_a_few_answers_say_nothing_about_the_next():
    assert _lengths(*[5] * (MIN_ANSWERS - 1)).likely(1000) == 1000
    assert _lengths(*[5] * MIN_ANSWERS).likely(1000) == 5


def test_the_likely_length_is_one_that_most_answers_stay_below():
    assert _lengths(*range(1, 101)).likely(1000) == pytest.approx(90, abs=1)


def test_no_answer_is_longer_than_what_was_asked_for():
    assert _lengths(*[500] * 50).likely(20) == 20


def test_what_is_long_past_is_forgotten():
    lengths = _lengths(*[900] * WINDOW, *[10] * WINDOW)
    assert lengths.likely(1000) == 10
    assert _lengths(*[900] * WINDOW, *[10] * (WINDOW - 60)).likely(1000) == 900


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
