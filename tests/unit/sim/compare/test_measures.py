"""What a run comes to is what its requests say, without those that found an empty system."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdd.core.ids import RequestId
from pdd.core.request import Role, Route
from pdd.core.topology import SlaTable
from pdd.core.units import Bytes, Seconds
from pdd.sim.compare.measures import in_thirds, measure, measure_samples, quantiles, settled
from pdd.sim.result import Outcome, Reading, RequestSample, RunResult
from pdd.sim.workload.base import SOLE_TENANT
from pdd.sim.workload.conversations import WARM_UP_PREFIX

SLA = SlaTable()


def sample(number: int, **changes: object) -> RequestSample:
    made = RequestSample(
        request_id=RequestId(f"r{number}"),
        tenant=SOLE_TENANT,
        sent_at=Seconds(float(number)),
        outcome=Outcome.COMPLETE,
        num_prompt_tokens=1000,
        num_output_tokens=10,
        ttft_s=Seconds(1.0),
        ttst_s=Seconds(2.0),
        decode_first_token_s=Seconds(2.0),
        ended_s=Seconds(2.4),
        itl_s=((Seconds(1.0), 1), (Seconds(0.05), 8)),
        max_itl_s=Seconds(1.0),
        handoff_gap_s=None,
        route=Route.DIRECT,
        filtered=False,
        queued_s=Seconds(0.0),
        tokens_by_role={Role.PREFILL: 1, Role.MAIN_DECODE: 9},
        wan_kv_bytes=Bytes(100),
        transfer_s=Seconds(0.5),
        prefill_hit_tokens=900,
        missing_blocks_at_main=1,
        num_prompt_blocks=10,
    )
    return replace(made, **changes)


def test_shares_are_of_all_requests():
    relayed = sample(1, route=Route.RELAY, tokens_by_role={Role.PREFILL: 1, Role.RELAY_DECODE: 4, Role.MAIN_DECODE: 5})
    refused = sample(2, outcome=Outcome.REFUSED, num_output_tokens=0, tokens_by_role={}, ttft_s=None, ttst_s=None)
    found = measure_samples([sample(0), relayed, refused, sample(3)], SLA)
    assert (found.complete, found.refused, found.relay_share) == (0.75, 0.25, 0.25)
    assert found.rld_token_share == pytest.approx(4 / 30, abs=1e-6)
    assert (found.within_sla, found.goodput_per_s) == (0.75, 1.0)
    assert (found.prefill_hit, found.main_hit) == (pytest.approx(0.9), pytest.approx(0.9))
    assert found.ttst.p50 == 2.0


def test_warm_up_and_the_first_tenth_are_not_measured():
    samples = [sample(number) for number in reversed(range(20))]
    stem = sample(0, request_id=RequestId(f"{WARM_UP_PREFIX}0"))
    assert [each.request_id for each in settled([stem, *samples])] == [f"r{number}" for number in range(2, 20)]


def test_what_lines_carried_before_the_first_measured_request_does_not_count():
    readings = [
        Reading(at=Seconds(at), running={}, queued=0, wan_bytes={"wan": Bytes(carried)}, held_blocks={})
        for at, carried in ((0.0, 0), (1.5, 1000), (1.9, 2000), (30.0, 3800))
    ]
    samples = tuple(sample(number) for number in range(20))
    result = RunResult(samples=samples, readings=tuple(readings), duration_s=Seconds(30.0), link_rates={})
    assert measure(result, SLA).wan_bytes_per_request == (3800 - 2000) / 18
    assert measure(replace(result, readings=()), SLA).wan_bytes_per_request == 0


def test_quantiles_of_nothing_are_unknown():
    assert quantiles([None]).p50 is None
    assert quantiles([None, 1.0, 3.0]).p50 == 2.0


def test_thirds_are_the_whole_in_order():
    thirds = in_thirds([sample(number) for number in range(7)])
    assert [len(third) for third in thirds] == [2, 3, 2]
    assert [each.sent_at for third in thirds for each in third] == list(range(7))
