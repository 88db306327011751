"""The three systems differ in what they are meant to differ in, and in nothing else."""

from __future__ import annotations

import pytest

from pdd.cli.topology.file import load_simulated_topology
from pdd.core.request import Role
from pdd.core.topology import FilterRule, RouteRule, Topology
from pdd.sim.compare.systems import System, as_system, with_line_rate
from pdd.sim.profile import load_hardware


@pytest.fixture
def paper() -> Topology:
    return load_simulated_topology("paper")


def test_pdd_is_the_topology_as_it_is(paper):
    assert as_system(paper, System.PDD) == paper


def test_cross_datacenter_hides_nothing_and_keeps_its_hardware(paper):
    cross = as_system(paper, System.CROSS_DC)
    assert (cross.router.policy.route, cross.router.policy.filter) == (RouteRule.DIRECT, FilterRule.OFF)
    assert (cross.nodes, cross.engines, cross.links) == (paper.nodes, paper.engines, paper.links)


def test_same_datacenter_has_one_cluster_no_line_and_as_much_memory_of_one_type(paper):
    same = as_system(paper, System.SAME_DC)
    assert {each.cluster for each in (*same.nodes, *same.engines)} == {paper.router.cluster}
    assert same.links == ()
    assert {engine.hardware for engine in same.engines} == {"H100-SXM"}
    for before, after in zip(paper.engines_of(Role.MAIN_DECODE), same.engines_of(Role.MAIN_DECODE), strict=True):
        memory = before.num_chips * load_hardware("H200-SXM").memory_bytes
        assert 0 <= after.num_chips * load_hardware("H100-SXM").memory_bytes - memory < 80e9


def test_a_line_may_be_as_fast_as_one_likes(paper):
    assert [link.rate_bits_per_s for link in with_line_rate(paper, 5e9).links] == [5e9]
