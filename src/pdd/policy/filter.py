"""Singular traffic: a very long input with a very short output, whose KV would cross the line for nothing.

Relay decode finishes such an answer before main decode has its KV, so it stays there to its end and its transfer gets what
the line has to spare. This is the one deliberate exception to "every answer ends at main decode", so it is bounded: its
share of all requests is capped, and a conversation is never filtered on two consecutive turns: it would ratchet (filtered,
so cold at main decode, so slow to send, so filtered again).
"""

from __future__ import annotations

from dataclasses import dataclass

from pdd.core.units import Seconds

MAX_SAVED_UP = 4.0
"""So many filtered requests in a row at most, however few there were before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterView:
    """What is known of a request that would relay.

    ``predicted_wait`` is main decode's (None: unknown), ``itl`` relay decode's time per token (None: not measured yet),
    ``likely_tokens`` what is still to come of the answer, on the safe side. ``relay_load`` is the share of relay decode's
    places in use, of which a filtered request takes one for longer than others do.
    """

    predicted_wait: Seconds | None
    likely_tokens: int
    itl: Seconds | None
    filtered_last_turn: bool
    within_share: bool
    relay_load: float
    max_load: float


def should_filter(view: FilterView) -> bool:
    """Whether relay decode will be done before main decode could begin, and may be."""
    if view.predicted_wait is None or view.itl is None:
        return False
    if view.filtered_last_turn or not view.within_share or view.relay_load > view.max_load:
        return False
    return view.predicted_wait > view.likely_tokens * view.itl


class FilterShare:
    """Keeps the filtered part of all requests at or below ``max_share``, from the first request on. Not thread-safe."""

    def __init__(self, max_share: float) -> None:
        self._max_share = max_share
        self._saved_up = 0.0

    @property
    def allows_one(self) -> bool:
        return self._saved_up >= 1.0

    def saw_request(self) -> None:
        """Every request, filtered or not, adds its share."""
        self._saved_up = min(MAX_SAVED_UP, self._saved_up + self._max_share)

    def filtered_one(self) -> None:
        """Call only while ``allows_one``."""
        self._saved_up -= 1.0
