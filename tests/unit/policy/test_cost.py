import pytest

from pdd.policy.cost import predict_transfer_wait


@pytest.mark.parametrize(
    ("missing", "backlog", "expected"),
    [
        (0, 0, 0.0),
        (0, 900, 0.0),
        (100, 100, 1.0),
        (100, 150, 1.5),
        (100, 200, 2.0),
        (100, 10_000, 2.0),
    ],
)
def test_others_slow_a_transfer_by_no_more_than_its_own_size(missing, backlog, expected):
    assert predict_transfer_wait(missing=missing, backlog=backlog, rate=100.0) == pytest.approx(expected)


def test_a_backlog_that_does_not_yet_count_this_request_costs_nothing():
    assert predict_transfer_wait(missing=100, backlog=0, rate=50.0) == pytest.approx(2.0)
