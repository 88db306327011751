"""How relay decode hands over to main decode, and how long it may go on before.

Catch-up converges only if main decode extends a token faster than relay decode decodes one: with a and b the fixed and
per-token time of an extend, a gap g becomes (RTT + a + b g) / ITL. So batches go on while they shrink by half. It keeps
relay decode busy for longer, so while many use it hand-offs are one-shot.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import assert_never

from pdd.core.request import HandoffMode, Role
from pdd.core.topology import HandoffRule
from pdd.core.units import Seconds
from pdd.core.view import RequestView

CAP_MARGIN = 2.0
"""A capped relay lasts for so many times the predicted wait: a client that waits at the cap feels all that is missing.
"""
MIN_CAP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """``gap`` tokens would be extended now; ``previous_gap`` were in the last batch (None before the first)."""

    gap: int
    previous_gap: int | None
    rounds: int


def choose_handoff(view: RequestView, batches: Batches) -> HandoffMode:
    """ONE_SHOT is final. A large gap is worth a batch while rounds are left; after the first it must have halved.

    Pinned to catch-up, even small gaps go in batches, but these must shrink all the same.
    """
    settings = view.settings
    match view.steering.handoff:
        case HandoffMode.ONE_SHOT:
            return HandoffMode.ONE_SHOT
        case HandoffMode.CATCH_UP:
            return _catch_up_while_it_converges(view, batches, threshold_tokens=0)
        case None:
            pass
        case _:
            assert_never(view.steering.handoff)
    busy = view.roles[Role.RELAY_DECODE].load > settings.one_shot_load
    if settings.handoff is HandoffRule.ONE_SHOT or (settings.handoff is HandoffRule.BY_LOAD and busy):
        return HandoffMode.ONE_SHOT
    return _catch_up_while_it_converges(view, batches, threshold_tokens=settings.catch_up_threshold_tokens)


def _catch_up_while_it_converges(view: RequestView, batches: Batches, *, threshold_tokens: int) -> HandoffMode:
    if batches.gap <= threshold_tokens or batches.rounds >= view.settings.max_catch_up_rounds:
        return HandoffMode.ONE_SHOT
    converges = batches.previous_gap is None or batches.gap * 2 <= batches.previous_gap
    return HandoffMode.CATCH_UP if converges else HandoffMode.ONE_SHOT


def choose_relay_cap(view: RequestView, predicted_wait: Seconds | None) -> int | None:
    """How many tokens relay decode may emit before it waits for main decode; None: as many as it takes.

    Only while relay decode is short of room, and only if it is known how long main decode's KV takes: then a transfer
    that takes much longer than it should doesn't hold a place that others need. A pinned relay has no cap but its own,
    and where no main decode is up there is nothing to wait for.
    """
    if view.steering.route is not None or not view.main_available or view.relay_load <= view.settings.one_shot_load:
        return None
    itl = view.roles[Role.RELAY_DECODE].pace.unit_s
    if predicted_wait is None or itl is None:
        return None
    return max(MIN_CAP_TOKENS, ceil(CAP_MARGIN * predicted_wait / itl))
