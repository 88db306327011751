"""Simulations on several processes give what they give on one, in order; a failure ends them."""

from __future__ import annotations

import pytest

from pdd.sim.compare.jobs import run_jobs


def _square(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number * number


@pytest.mark.parametrize("num_processes", [1, 2])
def test_results_come_in_the_order_of_the_jobs(num_processes):
    told: list[str] = []
    assert run_jobs(_square, [3, 1, 2], num_processes=num_processes, progress=told.append) == [9, 1, 4]
    assert told == ["1 of 3 simulations", "2 of 3 simulations", "3 of 3 simulations"]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_failure_is_raised(num_processes):
    with pytest.raises(ValueError, match="-1"):
        run_jobs(_square, [3, -1, 2], num_processes=num_processes, progress=lambda _: None)
