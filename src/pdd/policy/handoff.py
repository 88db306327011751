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
    """ONE_SHOT is final. A large gap is worth a batch while rounds are left; after the first it must have halved."""
    if view.gap <= view.threshold_tokens or view.rounds >= view.max_rounds:
        return HandoffMode.ONE_SHOT
    converges = view.previous_gap is None or view.gap * 2 <= view.previous_gap
    return HandoffMode.CATCH_UP if converges else HandoffMode.ONE_SHOT
