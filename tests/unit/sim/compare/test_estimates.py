"""Means over seeds, and how sure they are."""

from __future__ import annotations

import pytest

from pdd.sim.compare.estimates import estimate


def test_one_seed_has_no_interval():
    assert (estimate([3.0]).mean, estimate([3.0]).low, estimate([3.0]).high) == (3.0, None, None)


def test_the_interval_is_students():
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.high == pytest.approx(2.0 + 4.303 / 3**0.5)
    assert found.low == pytest.approx(2.0 - 4.303 / 3**0.5)
