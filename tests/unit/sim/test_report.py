"""Figures of runs that are known by heart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdd.core.ids import RequestId, TenantId
from pdd.core.request import Role, Route
from pdd.core.topology import SlaTable
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.sim.report import is_within, percentile, percentiles, summarize, time_per_output_token
from pdd.sim.result import Outcome, Reading, RequestSample, RunResult

SAMPLE = RequestSample(
    request_id=RequestId("r"),
    tenant=TenantId("t"),
    sent_at=Seconds(0.0),
    outcome=Outcome.COMPLETE,
    num_prompt_tokens=1000,
    num_output_tokens=11,
    ttft_s=Seconds(1.0),
    ttst_s=Seconds(3.0),
    decode_first_token_s=Seconds(3.0),
    ended_s=Seconds(4.0),
    itl_s=((Seconds(2.0), 1), (Seconds(0.1), 9)),
    max_itl_s=Seconds(2.0),
    handoff_gap_s=None,
    route=Route.DIRECT,
    filtered=False,
    queued_s=Seconds(0.0),
    tokens_by_role={Role.PREFILL: 1, Role.MAIN_DECODE: 10},
    wan_kv_bytes=Bytes(0),
    transfer_s=Seconds(2.0),
    prefill_hit_tokens=900,
    missing_blocks_at_main=5,
    num_prompt_blocks=20,
)
SLA = SlaTable(ttft_s=Seconds(1.5), ttst_s=Seconds(5.0), tpot_s=Seconds(0.11))


def result(*samples: RequestSample, carried: int = 0, duration: float = 10.0) -> RunResult:
    readings = tuple(
        Reading(at=Seconds(at), running={}, queued=0, wan_bytes={"wan": Bytes(sent)}, held_blocks={})
        for at, sent in ((0.0, 0), (duration, carried))
    )
    return RunResult(
        samples=samples,
        readings=readings,
        duration_s=Seconds(duration),
        link_rates={"wan": BytesPerSecond(100.0)},
    )


def test_time_per_output_token_begins_after_the_second():
    assert time_per_output_token(SAMPLE) == pytest.approx(0.1)
    assert time_per_output_token(replace(SAMPLE, num_output_tokens=2)) is None


@pytest.mark.parametrize(
    "broken",
    [
        {"ttft_s": Seconds(1.6)},
        {"ttst_s": Seconds(5.1), "itl_s": ((Seconds(4.1), 1), (Seconds(0.1), 9))},
        {"itl_s": ((Seconds(2.0), 1), (Seconds(0.12), 9))},
        {"outcome": Outcome.BROKEN},
        {"outcome": Outcome.REFUSED, "ttft_s": None},
    ],
)
def test_every_promise_counts(broken):
    assert is_within(SAMPLE, SLA)
    assert not is_within(replace(SAMPLE, **broken), SLA)


def test_an_answer_of_one_token_has_no_second_one_to_wait_for():
    assert is_within(replace(SAMPLE, num_output_tokens=1, ttst_s=None, itl_s=()), SLA)


def test_percentiles_lie_between_the_nearest():
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) is None
    assert percentiles([3.0, None, 1.0]) == {"p50": 2.0, "p90": 2.8, "p99": 2.98, "mean": 2.0, "count": 2}


def test_intervals_count_once_a_token():
    figures = summarize(result(SAMPLE), SLA)
    assert figures["itl_s"] == {"p50": 0.1, "p90": 0.1, "p99": 2.0, "mean": 0.29, "count": 10}


def test_shares_rates_and_lines():
    relayed = replace(
        SAMPLE,
        route=Route.RELAY,
        tokens_by_role={Role.PREFILL: 1, Role.RELAY_DECODE: 4, Role.MAIN_DECODE: 6},
        filtered=True,
        queued_s=Seconds(0.5),
        missing_blocks_at_main=15,
    )
    refused = replace(
        SAMPLE, outcome=Outcome.REFUSED, num_output_tokens=0, ttft_s=None, retry_after_s=Seconds(3.0), tokens_by_role={}
    )
    figures = summarize(result(SAMPLE, relayed, refused, carried=250), SLA)
    assert figures["relay_share"] == figures["filtered_share"] == 0.5
    assert figures["rld_token_share"] == pytest.approx(4 / 22, abs=1e-6)
    assert figures["hit_rate"] == {"prefill": 0.9, "main_decode": 0.5}
    assert figures["wan"] == {"wan": {"bytes": 250, "utilisation": 0.25}}
    assert figures["requests"] == {
        "sent": 3,
        "complete": 2,
        "refused": 1,
        "broken": 0,
        "queued": 1,
        "filtered": 1,
        "shed": 1,
        "retry_after_s": {"p50": 3.0, "p90": 3.0, "p99": 3.0, "mean": 3.0, "count": 1},
    }
    assert figures["goodput"] == {
        "within_sla": 2,
        "share": pytest.approx(2 / 3, abs=1e-6),
        "requests_per_s": 0.2,
        "sla": {"ttft_s": 1.5, "ttst_s": 5.0, "tpot_s": 0.11},
    }


def test_periods_are_those_in_which_requests_were_sent():
    samples = [replace(SAMPLE, sent_at=Seconds(at), prefill_hit_tokens=hit) for at, hit in ((0.0, 0), (10.0, 1000))]
    periods = summarize(result(*samples, carried=500), SLA)["over_time"]
    assert len(periods) == 20
    assert [period["sent"] for period in periods] == [1] + [0] * 18 + [1]
    assert periods[0]["hit_rate"]["prefill"] == 0.0
    assert periods[-1]["hit_rate"]["prefill"] == 1.0


def test_warm_up_counts_for_nothing_but_what_it_left_behind():
    stem = replace(SAMPLE, request_id=RequestId("stem-0"), prefill_hit_tokens=0)
    sample = replace(SAMPLE, sent_at=Seconds(10.0))
    figures = summarize(result(stem, sample, carried=500), SLA)
    assert figures["requests"]["sent"] == 1
    assert figures["hit_rate"]["prefill"] == 0.9
    assert figures["duration_s"] == 4.0
    assert figures["wan"]["wan"]["bytes"] == 0
    assert figures["over_time"][0]["from_s"] == 10.0


def test_a_run_without_an_answer_has_figures_of_nothing():
    refused = replace(SAMPLE, outcome=Outcome.REFUSED, num_output_tokens=0, ttft_s=None, tokens_by_role={})
    figures = summarize(result(refused), SLA)
    assert figures["relay_share"] is None
    assert figures["ttft_s"]["p50"] is None
