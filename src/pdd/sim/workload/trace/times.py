"""Whether a trace's times are likely to be meant in the unit in which they are read.

Three things tell. Numbers that are moments of this century, counted from 1970, fit one unit only. A trace of a service
has neither more than a hundred requests a second, twice the busiest that is public, nor less than one in a hundred
seconds. And an answer takes its time: whoever goes on after it at once, again and again, is faster than any engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pdd.sim.workload.trace.rows import TimeUnit

_LEAST_REQUESTS = 10
"""Fewer say nothing about a rate."""
_REQUESTS_PER_S = (0.01, 100.0)
_MOST_TOKENS_PER_S = 5000.0
"""Of one answer."""
_THIS_CENTURY_S = (946_684_800, 4_102_444_800)

Turn = tuple[int, int]
"""From a request to the next of its conversation, in nanoseconds as read, and the answer's tokens between them."""


def likely_unit(times_ns: Sequence[int], unit: TimeUnit, turns: Sequence[Turn]) -> TimeUnit | None:
    """The unit that ``times_ns``, in order and read as ``unit``, seem to be in; None if that may well be right."""
    counted = next((each for each in TimeUnit if _is_moment(times_ns[0], unit, each)), None)
    if counted is not None:
        return None if counted is unit else counted
    if len(times_ns) < _LEAST_REQUESTS or times_ns[0] == times_ns[-1]:
        return None
    fitting = [each for each in TimeUnit if _fits(times_ns, turns, each.ns / unit.ns)]
    return fitting[0] if fitting and unit not in fitting else None


def _is_moment(time_ns: int, unit: TimeUnit, meant: TimeUnit) -> bool:
    """Whether the first time, as it is written, is one of this century in ``meant``, counted from 1970."""
    first, last = _THIS_CENTURY_S
    return first <= time_ns / unit.ns * meant.ns / TimeUnit.SECONDS.ns <= last


def _fits(times_ns: Sequence[int], turns: Sequence[Turn], longer: float) -> bool:
    """Whether a service may have been asked so, were all times ``longer``."""
    least, most = _REQUESTS_PER_S
    span_s = (times_ns[-1] - times_ns[0]) * longer / TimeUnit.SECONDS.ns
    if not least <= (len(times_ns) - 1) / span_s <= most:
        return False
    if len(turns) < _LEAST_REQUESTS:
        return True
    speeds = (tokens / max(gap_ns * longer / TimeUnit.SECONDS.ns, 1e-9) for gap_ns, tokens in turns)
    return median(speeds) <= _MOST_TOKENS_PER_S
