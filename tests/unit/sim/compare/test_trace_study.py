"""Traces are played on every system at every load, and it is said where relays are swamped."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from pdd.cli.topology.file import load_simulated_topology
from pdd.core.errors import ConfigError
from pdd.sim.compare.systems import System
from pdd.sim.compare.trace_study import study_traces, traffic_at, verdicts
from pdd.sim.workload.traces import read_trace


@pytest.fixture
def topology():
    return load_simulated_topology("crossing")


@pytest.fixture
def trace(tmp_path):
    """Forty users, each with two turns; the second keeps the first."""
    rows = []
    for user in range(40):
        first = [100 * user + index for index in range(10)]
        second = [*first[:9], *(100 * user + 50 + index for index in range(6))]
        rows.append({"timestamp": 1000 * user, "input_length": 5000, "output_length": 40, "hash_ids": first})
        rows.append({"timestamp": 1000 * user + 10_000, "input_length": 7500, "output_length": 40, "hash_ids": second})
    path = tmp_path / "users.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return read_trace(path)


def study(topology, trace, loads, told=None):
    return study_traces(
        topology,
        [trace],
        loads,
        max_requests=24,
        num_processes=1,
        progress=(lambda _: None) if told is None else told.append,
    )


def test_every_system_answers_every_request_at_every_load(topology, trace):
    told: list[str] = []
    standings = study(topology, trace, [0.2, 0.8], told)
    assert [(each.load, each.system) for each in standings] == [(load, each) for load in (0.2, 0.8) for each in System]
    assert {each.measures.complete for each in standings} == {1.0}
    assert len(told) == 6
    assert standings[3].requests_per_s > 2 * standings[0].requests_per_s
    same, cross, pdd = standings[:3]
    assert same.line_use is None
    assert same.relay_use is None
    assert cross.relay_use is None
    assert cross.line_use is not None
    assert 0.05 < cross.line_use < 1.0
    assert cross.measures.relay_share == 0
    assert pdd.relay_use is not None
    assert same.measures.main_hit == cross.measures.main_hit > 0.3


@pytest.mark.parametrize("load", [0.1, 0.7, 1.5])
def test_load_is_the_part_of_the_line_that_prompts_lack(topology, trace, load):
    (traffic,) = traffic_at(topology, trace, [load], max_requests=60)
    line_tokens_per_s = 1.25e9 / 40016
    assert traffic.played.new_tokens_per_s / line_tokens_per_s == pytest.approx(load, rel=0.15)


def test_a_relay_that_decodes_more_than_its_part_is_called_swamped(topology, trace):
    standings = study(topology, trace, [0.2])
    assert [each.relay_is_swamped for each in verdicts(topology, standings)] == [False]
    for share, swamped in ((0.25, False), (0.27, True)):
        crowded = [replace(each, measures=replace(each.measures, rld_token_share=share)) for each in standings]
        (verdict,) = verdicts(topology, crowded)
        assert verdict.relay_is_swamped is swamped


def test_a_relay_without_places_is_called_swamped(topology, trace):
    standings = study(topology, trace, [0.2])
    full = [replace(each, relay_use=0.9) for each in standings]
    assert [each.relay_is_swamped for each in verdicts(topology, full)] == [True]


def test_a_verdict_compares_waiting_and_goodput(topology, trace):
    standings = study(topology, trace, [0.2])
    (verdict,) = verdicts(topology, standings)
    same, cross, pdd = (each.measures for each in standings)
    assert verdict.ttst_gain == cross.ttst.p90 / pdd.ttst.p90
    assert verdict.ttst_of_same_dc == pdd.ttst.p90 / same.ttst.p90 > 1
    assert verdict.goodput_gain == pdd.goodput_per_s / cross.goodput_per_s


def test_a_topology_without_a_line_has_no_load(topology, trace):
    with pytest.raises(ConfigError, match="no link"):
        study(msgspec.structs.replace(topology, links=()), trace, [0.5])


def test_a_trace_of_which_nothing_fits_the_model_is_refused(topology, trace):
    with pytest.raises(ConfigError, match=r"users.*no conversation fits"):
        study(msgspec.structs.replace(topology, max_model_tokens=4096), trace, [0.5])
