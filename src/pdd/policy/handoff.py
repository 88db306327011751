"""How relay decode hands over to main decode, and how long it may go on before.

Catch-up converges only if main decode extends a token faster than relay decode decodes one: with a and b the fixed and
per-token time of an extend, a gap g becomes (RTT + a + b g) / ITL. So batches go on while they shrink by half. It keeps relay
decode busy for longer, so while many use it hand-offs are one-shot.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import assert_never

from pdd.core.request import HandoffMode
from pdd.core.topology import HandoffRule
from pdd.core.units import Seconds

CAP_MARGIN = 2.0
"""A capped relay lasts for so many times the predicted wait: a client that waits at the cap feels all that is missing."""
MIN_CAP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffView:
    """``gap`` tokens would be extended now; ``previous_gap`` were in the last batch (None before the first).

    ``relay_load`` is the share of relay decode's places in use.
    """

    gap: int
    previous_gap: int | None
    rounds: int
    threshold_tokens: int
    max_rounds: int
    rule: HandoffRule = HandoffRule.BY_LOAD
    relay_load: float = 0.0
    one_shot_load: float = 1.0


def choose_handoff(view: HandoffView) -> HandoffMode:
    """ONE_SHOT is final. A large gap is worth a batch while rounds are left; after the first it must have halved."""
    match view.rule:
        case HandoffRule.ONE_SHOT:
            return HandoffMode.ONE_SHOT
        case HandoffRule.BY_LOAD:
            return HandoffMode.ONE_SHOT if view.relay_load > view.one_shot_load else _catch_up_while_it_converges(view)
        case HandoffRule.CATCH_UP:
            return _catch_up_while_it_converges(view)
        case _:
            assert_never(view.rule)


def _catch_up_while_it_converges(view: HandoffView) -> HandoffMode:
    if view.gap <= view.threshold_tokens or view.rounds >= view.max_rounds:
        return HandoffMode.ONE_SHOT
    converges = view.previous_gap is None or view.gap * 2 <= view.previous_gap
    return HandoffMode.CATCH_UP if converges else HandoffMode.ONE_SHOT


def choose_relay_cap(
    *, predicted_wait: Seconds | None, itl: Seconds | None, relay_load: float, one_shot_load: float
) -> int | None:
    """How many tokens relay decode may emit before it waits for main decode; None: as many as it takes.

    Only while relay decode is short of room, and only if it is known how long main decode's KV takes: then a transfer that
    takes much longer than it should doesn't hold a place that others need. ``itl`` is relay decode's time per token.
    """
    if relay_load <= one_shot_load or predicted_wait is None or itl is None:
        return None
    return max(MIN_CAP_TOKENS, ceil(CAP_MARGIN * predicted_wait / itl))
