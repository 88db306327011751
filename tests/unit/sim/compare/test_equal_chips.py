"""Systems that recorded traffic is played on have as many chips as each other, and engines that their chips hold."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from pdd.cli.topology.file import load_simulated_topology
from pdd.core.errors import ConfigError
from pdd.core.request import Role
from pdd.core.topology import FilterRule, RouteRule
from pdd.sim.compare.equal_chips import relay_bandwidth_share, with_equal_chips
from pdd.sim.compare.systems import System


@pytest.fixture
def crossing():
    return load_simulated_topology("crossing")


def num_chips(topology, *roles):
    return sum(each.num_chips for role in roles or Role for each in topology.engines_of(role))


@pytest.mark.parametrize("system", System)
def test_every_system_has_as_many_chips(crossing, system):
    assert num_chips(with_equal_chips(crossing, system)) == num_chips(crossing) == 80


def test_without_hiding_relay_decodes_chips_prefill(crossing):
    built = with_equal_chips(crossing, System.CROSS_DC)
    assert num_chips(built, Role.PREFILL) == 48
    assert not built.engines_of(Role.RELAY_DECODE)
    assert {each.node for each in built.engines_of(Role.PREFILL)} == {"node-p"}
    assert {each.name for each in built.nodes} == {"node-p", "node-md"}
    assert (built.router.policy.route, built.router.policy.filter) == (RouteRule.DIRECT, FilterRule.OFF)
    assert built.links == crossing.links


def test_in_one_datacenter_all_are_of_prefills_type_and_relay_decodes_decode(crossing):
    built = with_equal_chips(crossing, System.SAME_DC)
    assert {each.hardware for each in built.engines} == {"H100-SXM"}
    assert {each.cluster for each in (*built.engines, *built.nodes)} == {"A"}
    assert [each.num_chips for each in built.engines_of(Role.MAIN_DECODE)] == [24, 24]
    assert not built.links


def test_a_cache_gets_the_same_part_of_the_memory_beside_the_weights(crossing):
    before = crossing.engines_of(Role.MAIN_DECODE)[0]
    after = with_equal_chips(crossing, System.SAME_DC).engines_of(Role.MAIN_DECODE)[0]
    weights, kv_bytes = 1.015e12 + 11.5e9, 40016
    parts = [
        each.cache_tokens * kv_bytes / (each.num_chips * memory - weights)
        for each, memory in ((before, 141e9), (after, 80e9))
    ]
    assert parts[0] == pytest.approx(parts[1], rel=1e-4)


def test_chips_that_do_not_divide_go_to_the_first(crossing):
    engines = tuple(
        replace(each, num_chips=17) if each.role is Role.RELAY_DECODE else each for each in crossing.engines
    )
    built = with_equal_chips(replace(crossing, engines=engines), System.SAME_DC)
    assert [each.num_chips for each in built.engines_of(Role.MAIN_DECODE)] == [25, 24]


def test_chips_that_do_not_hold_the_model_are_refused(crossing):
    engines = tuple(
        replace(each, num_chips=8) if each.role is Role.MAIN_DECODE else each
        for each in crossing.engines
        if each.role is not Role.RELAY_DECODE
    )
    with pytest.raises(ConfigError, match=r"MD0.*8 x H100-SXM don't hold Kimi-K2"):
        with_equal_chips(replace(crossing, engines=engines), System.SAME_DC)


def test_a_topology_without_prefill_is_refused(crossing):
    engines = tuple(each for each in crossing.engines if each.role is not Role.PREFILL)
    with pytest.raises(ConfigError, match="no prefill engine"):
        with_equal_chips(replace(crossing, engines=engines), System.CROSS_DC)


def test_relay_decodes_part_of_the_bandwidth_is_what_it_can_decode(crossing):
    assert relay_bandwidth_share(crossing) == pytest.approx(16 * 3.35 / (16 * 3.35 + 32 * 4.8))
    roles = Counter(each.role for each in crossing.engines)
    assert roles[Role.RELAY_DECODE] == 1
