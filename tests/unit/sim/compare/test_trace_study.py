"""Traces are played on every system at every load, and it is said where relays are swamped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pdd.cli.topology.file import load_simulated_topology
from pdd.sim.compare.systems import System
from pdd.sim.compare.trace_study import study_traces, verdicts


@pytest.fixture
def trace(tmp_path):
    """Eight users, each with two turns; the second keeps the first."""
    rows = []
    for user in range(8):
        first = [100 * user + index for index in range(10)]
        second = [*first[:9], *(100 * user + 50 + index for index in range(6))]
        rows.append({"timestamp": 500 * user, "input_length": 5000, "output_length": 40, "hash_ids": first})
        rows.append({"timestamp": 30_000 + 500 * user, "input_length": 7500, "output_length": 40, "hash_ids": second})
    path = tmp_path / "users.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_every_system_answers_every_request_at_every_load(trace):
    told: list[str] = []
    standings = study_traces(
        load_simulated_topology("crossing"),
        [trace],
        [1.0, 4.0],
        max_requests=99,
        num_processes=1,
        progress=told.append,
    )
    assert [(each.speed, each.system) for each in standings] == [(s, system) for s in (1.0, 4.0) for system in System]
    assert {each.measures.complete for each in standings} == {1.0}
    assert standings[0].requests_per_s < standings[3].requests_per_s * 1.01
    assert len(told) == 6
    by_system = {each.system: each.measures for each in standings[:3]}
    assert by_system[System.SAME_DC].wan_bytes_per_request == 0
    assert by_system[System.CROSS_DC].wan_bytes_per_request > 0
    assert by_system[System.CROSS_DC].relay_share == 0


def test_a_relay_that_serves_as_a_decode_cluster_is_called_swamped(trace):
    standings = study_traces(
        load_simulated_topology("crossing"), [trace], [1.0], max_requests=4, num_processes=1, progress=lambda _: None
    )
    assert [each.relay_is_swamped for each in verdicts(standings)] == [False]
    crowded = [replace(each, measures=replace(each.measures, rld_token_share=0.4)) for each in standings]
    assert [each.relay_is_swamped for each in verdicts(crowded)] == [True]
