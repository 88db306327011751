import pytest

from pdd.policy.cost import predict_transfer_wait


@pytest.mark.parametrize(
    ("missing", "backlog", "num_others", "expected"),
    [
        (0, 0, 0, 0.0),
        (0, 900, 3, 0.0),
        (100, 100, 0, 1.0),
        (100, 150, 1, 1.5),
        (100, 200, 1, 2.0),
        (100, 10_000, 1, 2.0),
        (100, 10_000, 4, 5.0),
        (100, 300, 4, 3.0),
        (100, 10_000, 0, 1.0),
    ],
)
def test_each_other_transfer_slows_one_down_by_no_more_than_its_own_size(missing, backlog, num_others, expected):
    wait = predict_transfer_wait(missing=missing, backlog=backlog, num_others=num_others, rate=100.0)
    assert wait == pytest.approx(expected)


def test_a_backlog_that_does_not_yet_count_this_request_costs_nothing():
    assert predict_transfer_wait(missing=100, backlog=0, num_others=1, rate=50.0) == pytest.approx(2.0)
