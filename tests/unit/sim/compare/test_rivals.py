"""Rivals differ from PDD in one rule each, and are measured in the same worlds."""

from __future__ import annotations

import pytest

from pdd.cli.topology.file import load_simulated_topology
from pdd.core.topology import PolicyTable
from pdd.sim.compare.rivals import BASELINE, Setting, compare_rivals, rivals
from pdd.sim.run import simulate
from pdd.sim.workload.load import Changes, load_workload


def test_each_rival_changes_exactly_one_rule():
    usual, *others = rivals(PolicyTable())
    assert usual.policy == PolicyTable()
    for rival in others:
        changed = [
            name for name in PolicyTable.__struct_fields__ if getattr(rival.policy, name) != getattr(usual.policy, name)
        ]
        assert len(changed) == 1, rival.name
        assert rival.instead_of.replace("-", "") == changed[0]


def test_all_stand_in_every_setting():
    workload = load_workload("agents-singular", seed=1, changes=Changes(num_requests=20, requests_per_s=4.0))
    setting = Setting(name="small", topology=load_simulated_topology("crossing"), workloads=[workload])
    standings = compare_rivals([setting], num_processes=1, progress=lambda _: None)
    assert [each.rival for each in standings] == [each.name for each in rivals(PolicyTable())]
    assert standings[0].rival == BASELINE
    nobody = next(each for each in standings if each.rival == "route: nobody relays")
    assert nobody.relay_share.mean == 0
    assert {each.within_sla.mean for each in standings} <= {share / 18 for share in range(19)}


@pytest.mark.parametrize("name", ["paper", "crossing"])
def test_the_packaged_topologies_can_be_simulated(name):
    topology = load_simulated_topology(name)
    workload = load_workload("agents", seed=1, changes=Changes(num_requests=5))
    assert len(simulate(topology, workload, seed=1).samples) == len(workload.requests)
