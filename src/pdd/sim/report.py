"""What a simulated run amounts to: percentiles of what clients felt, goodput, shares, bytes and hit rates, as plain
JSON values.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from pdd.core.request import Role, Route
from pdd.core.topology import SlaTable
from pdd.core.units import Seconds
from pdd.sim.result import Outcome, Reading, RequestSample, RunResult
from pdd.sim.workload.conversations import is_warm_up

_PERCENTS = (50, 90, 99)
_NUM_PERIODS = 20

Figures = dict[str, object]
"""Plain JSON values, by name."""


def summarize(result: RunResult, sla: SlaTable) -> Figures:
    """All figures of one run but for its warm-up. A share or percentile of nothing is null."""
    result = without_warm_up(result)
    samples = result.samples
    answered = [sample for sample in samples if sample.num_output_tokens]
    return {
        "requests": _outcomes(samples),
        "duration_s": _round(result.duration_s),
        "ttft_s": percentiles(sample.ttft_s for sample in answered),
        "ttst_s": percentiles(sample.ttst_s for sample in answered),
        "decode_first_token_s": percentiles(sample.decode_first_token_s for sample in answered),
        "itl_s": _weighted_percentiles([pair for sample in answered for pair in sample.itl_s]),
        "max_itl_s": percentiles(sample.max_itl_s for sample in answered),
        "handoff_gap_s": percentiles(sample.handoff_gap_s for sample in answered),
        "transfer_s": percentiles(sample.transfer_s for sample in answered),
        "ended_s": percentiles(sample.ended_s for sample in answered),
        "queued_s": percentiles(sample.queued_s for sample in samples if sample.queued_s > 0),
        "goodput": _goodput(result, sla),
        "relay_share": _share(sample.route in (Route.RELAY, Route.RELAY_ONLY) for sample in answered),
        "filtered_share": _share(sample.filtered for sample in answered),
        "tokens_by_role": _tokens_by_role(answered),
        "rld_token_share": token_share(answered, Role.RELAY_DECODE),
        "hit_rate": {"prefill": prefill_hit_rate(answered), "main_decode": main_hit_rate(answered)},
        "wan": {name: _line_use(result, name) for name in result.link_rates},
        "over_time": _over_time(result),
    }


def without_warm_up(result: RunResult) -> RunResult:
    """As if the run had begun with the first request that is no warm-up. One of nothing else stays as it is."""
    samples = tuple(sample for sample in result.samples if not is_warm_up(sample.request_id))
    if len(samples) in (0, len(result.samples)):
        return result
    begin = min(sample.sent_at for sample in samples)
    end = max(sample.sent_at + sample.ended_s for sample in samples)
    first = last_reading_before(result.readings, begin)
    return replace(result, samples=samples, readings=result.readings[first:], duration_s=Seconds(end - begin))


def last_reading_before(readings: Sequence[Reading], moment: float) -> int:
    """Its index; the first one's if none is earlier."""
    return max(0, bisect_right(readings, moment, key=lambda reading: reading.at) - 1)


def percentiles(values: Iterable[float | None]) -> Figures:
    """P50, P90, P99 and the mean of those that are known."""
    ordered = sorted(value for value in values if value is not None)
    figures: Figures = {f"p{percent}": _round(percentile(ordered, percent)) for percent in _PERCENTS}
    return {**figures, "mean": _round(sum(ordered) / len(ordered) if ordered else None), "count": len(ordered)}


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Between the two nearest of ``ordered``, which is sorted; None of nothing."""
    if not ordered:
        return None
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def is_within(sample: RequestSample, sla: SlaTable) -> bool:
    """Whether a request got all that was promised."""
    if sample.outcome is not Outcome.COMPLETE or sample.ttft_s is None:
        return False
    per_token = time_per_output_token(sample)
    return (
        sample.ttft_s <= sla.ttft_s
        and (sample.ttst_s is None or sample.ttst_s <= sla.ttst_s)
        and (per_token is None or per_token <= sla.tpot_s)
    )


def time_per_output_token(sample: RequestSample) -> Seconds | None:
    """Mean time of the tokens after the second; None if there are none."""
    if sample.ttft_s is None or sample.ttst_s is None or sample.num_output_tokens < 3:
        return None
    since_first = sum(interval * count for interval, count in sample.itl_s)
    return Seconds((since_first - (sample.ttst_s - sample.ttft_s)) / (sample.num_output_tokens - 2))


def token_share(samples: Iterable[RequestSample], role: Role) -> float | None:
    """Which share of all output tokens ``role`` computed."""
    by_role = _count_tokens(samples)
    return _ratio(by_role[role], by_role.total())


def prefill_hit_rate(samples: Iterable[RequestSample]) -> float | None:
    """Prompt tokens that prefill had cached, of all."""
    known = [(sample.prefill_hit_tokens, sample.num_prompt_tokens) for sample in samples]
    known = [(hit, total) for hit, total in known if hit is not None]
    return _ratio(sum(hit or 0 for hit, _ in known), sum(total for _, total in known))


def main_hit_rate(samples: Iterable[RequestSample]) -> float | None:
    """Prompt blocks that main decode's node had when the request came, of all."""
    known = [(sample.missing_blocks_at_main, sample.num_prompt_blocks) for sample in samples]
    known = [(missing, total) for missing, total in known if missing is not None]
    total = sum(total for _, total in known)
    return _ratio(total - sum(missing or 0 for missing, _ in known), total)


def _outcomes(samples: Sequence[RequestSample]) -> Figures:
    outcomes = Counter(sample.outcome for sample in samples)
    retry_after = [sample.retry_after_s for sample in samples if sample.outcome is Outcome.REFUSED]
    return {
        "sent": len(samples),
        **{outcome.value: outcomes[outcome] for outcome in Outcome},
        "queued": sum(sample.queued_s > 0 for sample in samples),
        "filtered": sum(sample.filtered for sample in samples),
        "shed": outcomes[Outcome.REFUSED],
        "retry_after_s": percentiles(retry_after),
    }


def _goodput(result: RunResult, sla: SlaTable) -> Figures:
    num_good = sum(is_within(sample, sla) for sample in result.samples)
    return {
        "within_sla": num_good,
        "share": _ratio(num_good, len(result.samples)),
        "requests_per_s": _ratio(num_good, result.duration_s),
        "sla": {"ttft_s": sla.ttft_s, "ttst_s": sla.ttst_s, "tpot_s": sla.tpot_s},
    }


def _count_tokens(samples: Iterable[RequestSample]) -> Counter[Role]:
    by_role: Counter[Role] = Counter()
    for sample in samples:
        by_role.update(sample.tokens_by_role)
    return by_role


def _tokens_by_role(samples: Iterable[RequestSample]) -> Figures:
    by_role = _count_tokens(samples)
    return {role.value: by_role[role] for role in Role}


def _line_use(result: RunResult, name: str) -> Figures:
    """Both ways together, over what one way could carry."""
    first, last = result.readings[0], result.readings[-1]
    carried = last.wan_bytes[name] - first.wan_bytes[name]
    rate = result.link_rates[name]
    return {"bytes": carried, "utilisation": _ratio(carried, rate * result.duration_s)}


def _over_time(result: RunResult) -> list[Figures]:
    """The run in even periods, by when requests were sent."""
    begin = min(sample.sent_at for sample in result.samples)
    period = (max(sample.sent_at for sample in result.samples) - begin) / _NUM_PERIODS
    groups: list[list[RequestSample]] = [[] for _ in range(_NUM_PERIODS)]
    for sample in result.samples:
        groups[min(_NUM_PERIODS - 1, int((sample.sent_at - begin) / period)) if period else 0].append(sample)
    return [
        {
            "from_s": _round(begin + number * period),
            "sent": len(group),
            "hit_rate": {"prefill": prefill_hit_rate(group), "main_decode": main_hit_rate(group)},
            "relay_share": _share(sample.route in (Route.RELAY, Route.RELAY_ONLY) for sample in group),
            "ttst_s": percentiles(sample.ttst_s for sample in group),
            "wan_utilisation": {
                name: _used(result.readings, name, begin + number * period, begin + (number + 1) * period, rate)
                for name, rate in result.link_rates.items()
            },
        }
        for number, group in enumerate(groups)
    ]


def _used(readings: Sequence[Reading], name: str, begin: float, end: float, rate: float) -> float | None:
    """The utilisation of a line between the readings after two moments."""
    first, last = _reading_at(readings, begin), _reading_at(readings, end)
    return _ratio(last.wan_bytes[name] - first.wan_bytes[name], rate * (last.at - first.at))


def _reading_at(readings: Sequence[Reading], moment: float) -> Reading:
    index = bisect_left(readings, moment, key=lambda reading: reading.at)
    return readings[min(index, len(readings) - 1)]


def _weighted_percentiles(pairs: Sequence[tuple[Seconds, int]]) -> Figures:
    """Of tokens, where each pair stands for so many at one interval."""
    ordered = sorted(pairs)
    up_to = list(accumulate(count for _, count in ordered))
    total = up_to[-1] if up_to else 0
    figures: Figures = {
        f"p{percent}": _round(ordered[bisect_left(up_to, total * percent / 100)][0]) if total else None
        for percent in _PERCENTS
    }
    mean = sum(interval * count for interval, count in ordered) / total if total else None
    return {**figures, "mean": _round(mean), "count": total}


def _share(flags: Iterable[bool]) -> float | None:
    counted = Counter(flags)
    return _ratio(counted[True], counted.total())


def _ratio(part: float, whole: float) -> float | None:
    return _round(part / whole) if whole else None


def _round(value: float | None) -> float | None:
    """Enough digits for microseconds, and the same text everywhere."""
    return None if value is None else round(value, 6)
