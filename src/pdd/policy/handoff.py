"""How relay decode hands over to main decode.

Catch-up converges only if main decode extends a token faster than relay decode decodes one: with a and b the fixed and
per-token time of an extend, a gap g becomes (RTT + a + b g) / ITL. So batches go on while they shrink by half.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdd.core.request import HandoffMode


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffView:
    """``gap`` tokens would be extended now; ``previous_gap`` were in the last batch (None before the first)."""

    gap: int
    previous_gap: int | None
    rounds: int
    threshold_tokens: int
    max_rounds: int


def choose_handoff(view: HandoffView) -> HandoffMode:
    """ONE_SHOT is final. The first batch of a large gap starts a catch-up; each next one must have halved."""
    if view.previous_gap is None:
        return HandoffMode.CATCH_UP if view.gap > view.threshold_tokens else HandoffMode.ONE_SHOT
    halved = view.gap * 2 <= view.previous_gap
    worth_another = halved and view.gap > view.threshold_tokens and view.rounds < view.max_rounds
    return HandoffMode.CATCH_UP if worth_another else HandoffMode.ONE_SHOT
