"""Generated conversations have the hit rates, lengths and order that were asked for."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import mean

import pytest

from pdd.core.errors import ConfigError
from pdd.core.ids import TenantId
from pdd.core.units import Seconds
from pdd.sim.workload.arrivals import Arrivals, Surge, arrival_times
from pdd.sim.workload.base import SimRequest, Workload, num_tokens
from pdd.sim.workload.conversations import (
    WARM_UP_PREFIX,
    ConversationSpec,
    Lengths,
    Singular,
    Traffic,
    generate,
    keep,
)
from pdd.sim.workload.hits import NARROW, SKEWED, UNCACHED, mean_hit_rate

SPEC = ConversationSpec(
    name="test",
    num_requests=4000,
    arrivals=Arrivals(requests_per_s=20.0),
    first_prompts=Lengths(mean=20_000, spread=0.4, least=2_000, most=60_000),
    answers=Lengths(mean=200, spread=0.5, most=4096),
    num_conversations=200,
)


def measured(workload: Workload) -> list[SimRequest]:
    return [request for request in workload.requests if not request.request_id.startswith(WARM_UP_PREFIX)]


def hit_rates(workload: Workload) -> list[float]:
    """Of a cache of prompts that loses nothing. Every text has token IDs of its own."""
    seen: set[int] = set()
    rates: list[float] = []
    for request in workload.requests:
        hit = 0
        for token, repeats in request.prompt:
            if token not in seen:
                break
            hit += repeats
        seen.update(token for token, _ in request.prompt)
        rates.append(hit / request.num_prompt_tokens)
    return rates[len(workload.requests) - len(measured(workload)) :]


def test_singular_requests_may_promise_to_say_little_and_keep_it():
    singular = Singular(share=0.2, hit_rates=UNCACHED, answers=Lengths(mean=50, spread=1.0, most=64), max_tokens=64)
    promised = {
        request.max_tokens: num_tokens(request.answer)
        for request in sorted(
            measured(generate(replace(SPEC, singular=singular), seed=1)), key=lambda each: num_tokens(each.answer)
        )
    }
    assert promised.keys() == {64, SPEC.max_tokens}
    assert promised[64] <= 64 < promised[SPEC.max_tokens]
    with pytest.raises(ConfigError, match="65 tokens"):
        replace(SPEC, singular=replace(singular, answers=Lengths(mean=50, most=65)))


def test_the_same_seed_gives_the_same_requests_and_another_one_others():
    assert generate(SPEC, seed=3) == generate(SPEC, seed=3)
    assert generate(SPEC, seed=3) != generate(SPEC, seed=4)


@pytest.mark.parametrize("rates", [SKEWED, NARROW], ids=["skewed", "narrow"])
def test_bands_sum_up_and_have_the_published_mean(rates):
    assert sum(band.share for band in rates) == pytest.approx(1.0)
    assert mean_hit_rate(rates) == pytest.approx(0.90, abs=0.002)


@pytest.mark.parametrize("rates", [SKEWED, NARROW], ids=["skewed", "narrow"])
def test_a_cache_that_loses_nothing_sees_the_hit_rates_that_were_asked_for(rates):
    found = hit_rates(generate(replace(SPEC, hit_rates=rates), seed=1))
    assert mean(found) == pytest.approx(mean_hit_rate(rates), abs=0.015)
    assert mean(rate > 0.95 for rate in found) == pytest.approx(
        sum(band.share for band in rates if band.low >= 0.95), abs=0.05
    )


def test_nothing_is_cached_where_nothing_shall_be():
    assert max(hit_rates(generate(replace(SPEC, hit_rates=UNCACHED), seed=1))) == 0.0


def test_a_turn_that_goes_on_extends_prompt_and_answer_of_the_one_before():
    workload = generate(SPEC, seed=2)
    by_id = {request.request_id: request for request in workload.requests}
    later = [request for request in workload.requests if request.after is not None]
    assert len(later) > len(workload.requests) / 2
    for request in later:
        previous = by_id[request.after]
        past = (*previous.prompt, *previous.answer)
        assert keep(request.prompt, num_tokens(past)) == past
        assert request.num_prompt_tokens > num_tokens(past)


def test_lengths_stay_within_their_bounds_and_arrivals_in_order():
    requests = measured(generate(SPEC, seed=5))
    assert all(request.num_prompt_tokens <= 60_000 and 1 <= request.num_answer_tokens <= 4096 for request in requests)
    assert [r.arrival for r in requests] == sorted(r.arrival for r in requests)
    assert requests[0].arrival >= SPEC.warm_up_s
    assert mean(request.num_answer_tokens for request in requests) == pytest.approx(200, rel=0.05)


def test_singular_requests_hit_little_and_say_little():
    singular = Singular(share=0.05, hit_rates=UNCACHED, answers=Lengths(mean=5, most=5))
    workload = generate(replace(SPEC, singular=singular), seed=6)
    short = [request for request in measured(workload) if request.num_answer_tokens == 5]
    assert len(short) / SPEC.num_requests == pytest.approx(0.05, abs=0.02)
    assert all(request.after is None for request in short)


def test_tenants_share_no_text_and_have_their_shares():
    traffic = (Traffic(tenant=TenantId("big"), share=0.9), Traffic(tenant=TenantId("small"), share=0.1))
    requests = generate(replace(SPEC, traffic=traffic), seed=7).requests
    texts = {name: {t for r in requests if r.tenant == name for t, _ in r.prompt} for name in ("big", "small")}
    assert not texts["big"] & texts["small"]
    assert mean(request.tenant == "small" for request in requests) == pytest.approx(0.1, abs=0.05)


def test_waves_keep_the_mean_rate_and_make_counts_swing():
    def counts(swing: float) -> list[int]:
        times = arrival_times(Arrivals(requests_per_s=50.0, swing=swing), Random(1))
        moments = [next(times) for _ in range(100_000)]
        per_second = [0] * (int(moments[-1]) + 1)
        for moment in moments:
            per_second[int(moment)] += 1
        return per_second[:-1]

    calm, wavy = counts(0.0), counts(0.5)
    assert mean(calm) == pytest.approx(50, rel=0.02)
    assert mean(wavy) == pytest.approx(50, rel=0.1)
    variance = [mean((each - 50) ** 2 for each in series) / 50 for series in (calm, wavy)]
    assert variance[0] == pytest.approx(1.0, abs=0.15)
    assert variance[1] > 5


def test_a_surge_multiplies_the_rate_while_it_lasts():
    surge = Surge(start=Seconds(10.0), duration=Seconds(5.0), factor=10.0)
    times = arrival_times(Arrivals(requests_per_s=100.0, surges=(surge,)), Random(2))
    moments = [next(times) for _ in range(8000)]
    during = sum(1 for moment in moments if 10 <= moment < 15)
    before = sum(1 for moment in moments if moment < 10)
    assert during == pytest.approx(5000, rel=0.06)
    assert before == pytest.approx(1000, rel=0.12)


def test_nonsense_is_refused():
    with pytest.raises(ConfigError):
        Arrivals(requests_per_s=0.0)
    with pytest.raises(ConfigError):
        replace(SPEC, num_conversations=0)
    with pytest.raises(ConfigError):
        replace(SPEC, max_tokens=10)
