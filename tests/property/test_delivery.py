"""Whatever nodes, links, owners and enemies do, a delivery keeps its rules."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdd.protocol import capacity_queue, delivery
from tests.support.delivery_module import deliveries_from
from tests.support.delivery_properties import PROPERTIES, Property


@pytest.fixture(scope="module")
def m():
    with deliveries_from() as module:
        yield module


def test_the_modules_under_test_are_loaded_beside_the_real_ones(m) -> None:
    assert m.Delivery is not delivery.Delivery
    assert m.Delivery.__doc__ == delivery.Delivery.__doc__
    assert m.CapacityQueue.__doc__ == capacity_queue.CapacityQueue.__doc__


@pytest.mark.parametrize("rule", PROPERTIES, ids=lambda rule: rule.__name__)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_a_delivery_keeps_its_rules(m, rule: Property, seed: int) -> None:
    """A seed is all there is to shrink: drawing each step would take minutes."""
    rule(m, Random(seed))
