"""Whatever engines, lines, clients and enemies do, a relay keeps its rules."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdd.protocol import relay
from tests.support.relay_properties import PROPERTIES

A_REQUEST_IS_LONG = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.mark.parametrize("rule", PROPERTIES, ids=lambda rule: rule.__name__)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=A_REQUEST_IS_LONG)
@given(random=st.randoms(use_true_random=False))
def test_a_relay_keeps_its_rules(rule, random):
    rule(relay, random)


@pytest.mark.parametrize("rule", PROPERTIES, ids=lambda rule: rule.__name__)
@settings(max_examples=300, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_relay_keeps_its_rules_in_many_more_worlds(rule, seed):
    """Without shrinking, but fast: what it finds, the test above can usually find smaller."""
    rule(relay, Random(seed))
