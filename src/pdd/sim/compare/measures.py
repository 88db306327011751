"""What one run comes to: the numbers that systems and policies are compared by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pdd.core.request import Role, Route
from pdd.core.topology import SlaTable
from pdd.sim.report import (
    is_within,
    last_reading_before,
    main_hit_rate,
    percentile,
    prefill_hit_rate,
    token_share,
)
from pdd.sim.result import Outcome, Reading, RequestSample, RunResult
from pdd.sim.workload.conversations import is_warm_up

SETTLING_SHARE = 0.1
"""Of all requests the first ones find an empty system; they are not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Of those requests that have the number; None if none has."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Times in seconds. Shares are of all measured requests, but ``rld_token_share``, of all output tokens.

    ``decode_ttft`` ends with the decode side's first token. ``max_itl`` is each request's largest gap between two
    tokens. ``prefill_hit`` and ``main_hit`` are the parts of all prompt tokens that were there already.
    """

    num_requests: int
    complete: float
    refused: float
    broken: float
    decode_ttft: Quantiles
    ttft: Quantiles
    ttst: Quantiles
    max_itl: Quantiles
    handoff_gap: Quantiles
    transfer: Quantiles
    within_sla: float
    goodput_per_s: float
    relay_share: float
    filtered_share: float
    rld_token_share: float
    wan_bytes_per_request: float
    prefill_hit: float | None
    main_hit: float | None


def settled(samples: Sequence[RequestSample]) -> list[RequestSample]:
    """What is measured: neither warm-up nor those that found an empty system. In order of sending."""
    asked = sorted(
        (sample for sample in samples if not is_warm_up(sample.request_id)),
        key=lambda sample: (sample.sent_at, sample.request_id),
    )
    return asked[round(len(asked) * SETTLING_SHARE) :]


def measure(result: RunResult, sla: SlaTable) -> Measures:
    """Of a run with at least one request. What lines carried is what they did since the first one that is measured."""
    samples = settled(result.samples)
    found = measure_samples(samples, sla)
    return replace(found, wan_bytes_per_request=_carried_since(samples[0].sent_at, result.readings) / len(samples))


def _carried_since(moment: float, readings: Sequence[Reading]) -> int:
    """By all lines, until the end: transfers outlive their requests."""
    if not readings:
        return 0
    first = readings[last_reading_before(readings, moment)]
    return sum(readings[-1].wan_bytes.values()) - sum(first.wan_bytes.values())


def measure_samples(samples: Sequence[RequestSample], sla: SlaTable) -> Measures:
    """Of at least one request, in order of sending. Bytes are those that had crossed by the end of each request."""
    duration = samples[-1].sent_at - samples[0].sent_at
    num_within = sum(is_within(sample, sla) for sample in samples)
    return Measures(
        num_requests=len(samples),
        complete=_share(samples, lambda each: each.outcome is Outcome.COMPLETE),
        refused=_share(samples, lambda each: each.outcome is Outcome.REFUSED),
        broken=_share(samples, lambda each: each.outcome is Outcome.BROKEN),
        decode_ttft=quantiles(sample.decode_first_token_s for sample in samples),
        ttft=quantiles(sample.ttft_s for sample in samples),
        ttst=quantiles(sample.ttst_s for sample in samples),
        max_itl=quantiles(sample.max_itl_s for sample in samples),
        handoff_gap=quantiles(sample.handoff_gap_s for sample in samples),
        transfer=quantiles(sample.transfer_s for sample in samples),
        within_sla=num_within / len(samples),
        goodput_per_s=num_within / duration if duration else 0.0,
        relay_share=_share(samples, lambda each: each.route in {Route.RELAY, Route.RELAY_ONLY}),
        filtered_share=_share(samples, lambda each: each.filtered),
        rld_token_share=token_share(samples, Role.RELAY_DECODE) or 0.0,
        wan_bytes_per_request=sum(sample.wan_kv_bytes for sample in samples) / len(samples),
        prefill_hit=prefill_hit_rate(samples),
        main_hit=main_hit_rate(samples),
    )


def quantiles(values: Iterable[float | None]) -> Quantiles:
    """Of those that are not None."""
    ordered = sorted(value for value in values if value is not None)
    p50, p90, p99 = (percentile(ordered, percent) for percent in (50, 90, 99))
    return Quantiles(p50=p50, p90=p90, p99=p99)


def _share(samples: Sequence[RequestSample], holds: Callable[[RequestSample], bool]) -> float:
    return sum(map(holds, samples)) / len(samples)


def in_thirds(samples: Sequence[RequestSample]) -> tuple[Sequence[RequestSample], ...]:
    """The beginning, the middle and the end of a run."""
    cuts = [round(len(samples) * part / 3) for part in range(4)]
    return tuple(samples[low:high] for low, high in pairwise(cuts))
