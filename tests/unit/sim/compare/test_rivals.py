"""Rivals differ from PDD in one thing each, and are measured in the same worlds with the same requests."""

from __future__ import annotations

import pytest

from pdd.cli.topology.file import load_simulated_topology
from pdd.core.topology import PolicyTable
from pdd.sim.compare.estimates import Estimate, estimate
from pdd.sim.compare.rivals import BASELINE, Figure, Setting, compare_rivals, rivals
from pdd.sim.compare.settings import TOPOLOGY, make_settings
from pdd.sim.run import simulate
from pdd.sim.workload.load import Changes, load_workload


def test_each_rival_changes_exactly_one_thing():
    usual, *others = rivals(PolicyTable())
    assert usual.policy == PolicyTable()
    for rival in others:
        changed = [
            name for name in PolicyTable.__struct_fields__ if getattr(rival.policy, name) != getattr(usual.policy, name)
        ]
        assert len(changed) == 1, rival.name


def test_those_named_compete_with_pdd_and_nobody_else():
    workloads = [
        load_workload("agents-singular", seed=seed, changes=Changes(num_requests=20, requests_per_s=4.0))
        for seed in (1, 2)
    ]
    setting = Setting(
        name="small", rivals=("nobody relays",), topology=load_simulated_topology(TOPOLOGY), workloads=workloads
    )
    usual, nobody = compare_rivals([setting], num_processes=1, progress=lambda _: None)
    assert (usual.rival, nobody.rival) == (BASELINE, "nobody relays")
    assert usual.figures["ttst_p90"].more == estimate([0.0, 0.0])
    assert nobody.figures["relay_share"].mean.mean == 0
    more = nobody.figures["relay_share"].more
    assert more is not None
    assert more.mean == pytest.approx(-usual.figures["relay_share"].mean.mean)
    assert "handoff_gap_p99" not in nobody.figures


@pytest.mark.parametrize(
    ("low", "high", "differs"), [(0.1, 0.2, True), (-0.2, -0.1, True), (-0.1, 0.1, False), (None, None, False)]
)
def test_a_figure_differs_if_the_interval_of_the_differences_leaves_out_zero(low, high, differs):
    more = Estimate(mean=0.0, low=low, high=high)
    assert Figure(mean=more, more=more).differs is differs
    assert not Figure(mean=more, more=None).differs


def test_settings_name_rivals_that_there_are_and_let_conversations_go_on():
    apart = load_simulated_topology(TOPOLOGY)
    names = {rival.name for rival in rivals(apart.router.policy)} - {BASELINE}
    settings = make_settings(apart, num_seeds=2, num_requests=200)
    assert {name for setting in settings for name in setting.rivals} == names
    assert len({setting.name.partition(":")[0] for setting in settings}) == len(settings)
    for setting in settings:
        first, second = setting.workloads
        assert first != second
        assert sum(request.after is not None for request in first.requests) > len(first.requests) / 3, setting.name


def test_only_main_decodes_nodes_are_forgetful():
    apart = load_simulated_topology(TOPOLOGY)
    forgetful = next(
        each for each in make_settings(apart, num_seeds=1, num_requests=10) if each.name.startswith("forgetful")
    )
    changed = {node.name for node, usual in zip(forgetful.topology.nodes, apart.nodes, strict=True) if node != usual}
    assert changed == {node.name for node in apart.nodes if node.cluster != apart.router.cluster}


@pytest.mark.parametrize("name", ["paper", "crossing", "apart"])
def test_the_packaged_topologies_can_be_simulated(name):
    topology = load_simulated_topology(name)
    workload = load_workload("agents", seed=1, changes=Changes(num_requests=5))
    assert len(simulate(topology, workload, seed=1).samples) == len(workload.requests)
