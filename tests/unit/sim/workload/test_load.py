"""A workload is named or read, and changed as asked."""

from __future__ import annotations

import json

import pytest

from pdd.core.errors import ConfigError
from pdd.core.units import Seconds
from pdd.sim.workload.conversations import WARM_UP_PREFIX
from pdd.sim.workload.load import GENERATED, Changes, generated_workloads, load_workload


@pytest.mark.parametrize("name", [GENERATED, *generated_workloads()])
def test_every_generated_workload_can_be_generated(name):
    workload = load_workload(name, seed=1, changes=Changes(num_requests=50, requests_per_s=5.0))
    measured = [each for each in workload.requests if not each.request_id.startswith(WARM_UP_PREFIX)]
    assert len(measured) == 50
    assert [each.arrival for each in measured] == sorted(each.arrival for each in measured)


def test_a_trace_is_sped_up_and_cut(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 1000 * i, "input_length": 600, "output_length": 5, "hash_ids": [i, 99 + i]} for i in range(9)]
    path.write_text("\n".join(map(json.dumps, rows)))
    requests = load_workload(
        str(path), seed=1, changes=Changes(speed=2.0, until_s=Seconds(3.0), num_requests=5)
    ).requests
    assert [request.arrival for request in requests] == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_an_unknown_name_is_refused_with_those_that_are_known():
    with pytest.raises(ConfigError, match="agents-narrow"):
        load_workload("agent", seed=1)
