"""The whole study in small: every figure is there, whoever runs the simulations."""

from __future__ import annotations

import msgspec
import pytest

from pdd.cli.topology.file import load_simulated_topology
from pdd.sim.compare.systems import System
from pdd.sim.paper.report import Figure
from pdd.sim.paper.study import Extent, study_paper

EXTENT = Extent(num_seeds=1, requests_per_run=25, requests_per_collapse=25, transfers_per_run=2000)


def figures(part: object) -> list[Figure]:
    if isinstance(part, Figure):
        return [part]
    return [figure for each in part.values() for figure in figures(each)]


@pytest.mark.timeout(300)
@pytest.mark.thorough
def test_a_small_study_has_every_figure_and_repeats_to_the_byte_on_two_processes():
    reports = [
        study_paper(
            load_simulated_topology("paper"),
            load_simulated_topology("collapse"),
            EXTENT,
            num_processes=num_processes,
            progress=lambda *_: None,
        )
        for num_processes in (1, 2)
    ]
    assert msgspec.json.encode(reports[0]) == msgspec.json.encode(reports[1])
    report = reports[0]
    assert set(report.ttft_s) == set(System)
    assert all(figure.simulated > 0 for figure in figures({**report.ttft_s, **report.kv_transfer_s}))
    assert {len(stages) for stages in report.collapse.values()} == {3}
    assert len(report.holds) == 11
