"""What a user felt, computed from when each token arrived. Pure arithmetic on recorded answers.

An inter-token gap is the wait between one token and the next; tokens that arrive in one chunk have gaps of zero between
them. TTFT is the wait for the first token, TTST for the second; both count from the moment the question was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

from pdd.cli.ask.conversation import ReceivedAnswer, ReceivedSpan, ReportedEvent
from pdd.core.request import Role
from pdd.core.units import Seconds

MAX_GAP_RATIO = 0.1
"""With the relay, the wait for the second token is at most so much of the wait without."""
MAX_SECOND_TURN_RATIO = 0.15
"""A second turn sends at most so much of the first one's KV."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """None where an answer has too few tokens.

    ``handoff_gap`` is the longest wait from relay to main decode's token.
    """

    ttft: Seconds
    ttst: Seconds | None
    max_gap: Seconds | None
    median_gap: Seconds | None
    handoff_gap: Seconds | None
    total: Seconds

    @property
    def second_token_gap(self) -> Seconds | None:
        """TTST - TTFT: what a transfer that nobody hid would cost the user."""
        return None if self.ttst is None else Seconds(self.ttst - self.ttft)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffBound:
    """How long a hand-off may be felt: a round trip, the extend of ``num_tokens`` and one token of main decode."""

    round_trip: Seconds
    extend: Seconds
    decode: Seconds
    num_tokens: int

    @property
    def total(self) -> Seconds:
        return Seconds(self.round_trip + self.extend + self.decode)


def token_times(spans: Sequence[ReceivedSpan]) -> list[Seconds]:
    """When each token arrived, in order."""
    return [span.at for span in spans for _ in span.token_ids]


def measure(answer: ReceivedAnswer) -> Timings:
    """The waits of one answer, which has at least one token."""
    times = token_times(answer.spans)
    gaps = [Seconds(later - earlier) for earlier, later in pairwise(times)]
    return Timings(
        ttft=times[0],
        ttst=times[1] if len(times) > 1 else None,
        max_gap=max(gaps) if gaps else None,
        median_gap=Seconds(median(gaps)) if gaps else None,
        handoff_gap=_handoff_gap(answer.spans),
        total=times[-1],
    )


def quick_gap(answer: ReceivedAnswer) -> Seconds:
    """The gap that a quarter of an answer's gaps stay below: the pace of an engine that nothing holds up."""
    times = token_times(answer.spans)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return Seconds(quantiles(gaps, n=4)[0]) if len(gaps) > 1 else Seconds(0.0)


def count_tokens(answer: ReceivedAnswer, role: Role) -> int:
    """How many of the answer's tokens ``role`` computed."""
    return sum(len(span.token_ids) for span in answer.spans if span.role is role)


def _handoff_gap(spans: Sequence[ReceivedSpan]) -> Seconds | None:
    with_tokens = [span for span in spans if span.token_ids]
    waits = [
        Seconds(after.at - before.at)
        for before, after in pairwise(with_tokens)
        if before.role is Role.RELAY_DECODE and after.role is Role.MAIN_DECODE
    ]
    return max(waits) if waits else None


def bound_handoff(answer: ReceivedAnswer, *, round_trip: Seconds, block_tokens: int) -> HandoffBound | None:
    """What the architecture promises of this answer's hand-off; None if there was none.

    Main decode extends the eager tokens that it did not extend before, and at most a block less one of the prompt's
    tail. What a token costs in that pass is taken from the batches that it extended before, or without any from the
    prefill; the fixed part of a pass is one token's time.
    """
    first_main = _first_position_of_main(answer.spans)
    decode = _median_gap_of(answer.spans, Role.MAIN_DECODE)
    batches = _batches(answer.report.events)
    per_token = _time_per_extended_token(batches, round_trip) or _time_per_prefilled_token(answer)
    if measure(answer).handoff_gap is None or first_main is None or decode is None or per_token is None:
        return None
    num_tokens = first_main - sum(batch.num_tokens for batch in batches) + block_tokens - 1
    extend = Seconds(decode + per_token * num_tokens)
    return HandoffBound(round_trip=round_trip, extend=extend, decode=decode, num_tokens=num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Tokens that main decode extended while another decoder went on, and how long that took, as the router saw it."""

    num_tokens: int
    duration: Seconds


def _batches(events: Sequence[ReportedEvent]) -> list[_Batch]:
    batches: list[_Batch] = []
    begun: tuple[Seconds, int] | None = None
    num_known = 0
    for event in events:
        known = event.fields.get("known")
        if event.name == "extend_started" and isinstance(known, int):
            begun = event.at, known
        elif event.name == "extended" and begun is not None:
            batches.append(_Batch(num_tokens=begun[1] - num_known, duration=Seconds(event.at - begun[0])))
            num_known, begun = begun[1], None
    return batches


def _time_per_extended_token(batches: Sequence[_Batch], round_trip: Seconds) -> Seconds | None:
    """From the largest batch, where what every pass costs counts least."""
    largest = max(batches, key=lambda batch: batch.num_tokens, default=None)
    if largest is None or largest.num_tokens < 1:
        return None
    return Seconds(max(0.0, largest.duration - round_trip) / largest.num_tokens)


def _time_per_prefilled_token(answer: ReceivedAnswer) -> Seconds | None:
    events = answer.report.events
    begin, end = first_time(events, "prefill_started"), first_time(events, "first_token")
    if begin is None or end is None:
        return None
    return Seconds((end - begin) / max(1, answer.report.num_prompt_tokens))


def _first_position_of_main(spans: Sequence[ReceivedSpan]) -> int | None:
    return next((span.first_position for span in spans if span.role is Role.MAIN_DECODE and span.token_ids), None)


def _median_gap_of(spans: Sequence[ReceivedSpan], role: Role) -> Seconds | None:
    times = token_times([span for span in spans if span.role is role])
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return Seconds(median(gaps)) if gaps else None


def count_extends(events: Sequence[ReportedEvent]) -> int:
    """How many batches main decode extended while another decoder went on."""
    return sum(event.name == "extended" for event in events)


def first_time(events: Sequence[ReportedEvent], name: str) -> Seconds | None:
    """When the first event of that name happened."""
    return next((event.at for event in events if event.name == name), None)


def last_time(events: Sequence[ReportedEvent], name: str) -> Seconds | None:
    """When the last event of that name happened."""
    return next((event.at for event in reversed(events) if event.name == name), None)


def record_of(name: str, answer: ReceivedAnswer) -> dict[str, object]:
    """One answer as a JSON object; times in seconds as measured by the client, KV in bytes."""
    timings = measure(answer)
    return {
        "name": name,
        "route": answer.report.route,
        "route_reason": answer.report.route_reason,
        "prompt_tokens": answer.report.num_prompt_tokens,
        "ttft_s": timings.ttft,
        "ttst_s": timings.ttst,
        "max_itl_s": timings.max_gap,
        "median_itl_s": timings.median_gap,
        "handoff_gap_s": timings.handoff_gap,
        "handoff_rounds": answer.report.handoff_rounds,
        "total_s": timings.total,
        "p_tokens": count_tokens(answer, Role.PREFILL),
        "rld_tokens": count_tokens(answer, Role.RELAY_DECODE),
        "md_tokens": count_tokens(answer, Role.MAIN_DECODE),
        "wan_kv_bytes": answer.report.wan_kv_bytes,
        "finish_reason": answer.finish_reason,
        "text": answer.text,
    }
