"""Singular traffic: a very long input with a very short output, whose KV would cross the line for nothing.

Relay decode finishes such an answer before main decode has its KV, so it stays there to its end and its transfer gets
what the line has to spare. This is the one deliberate exception to "every answer ends at main decode", so it is
bounded: its share of all requests is capped, and a conversation is never filtered on two consecutive turns: it would
ratchet (filtered, so cold at main decode, so slow to send, so filtered again).
"""

from __future__ import annotations

from pdd.core.request import Role
from pdd.core.topology import FilterRule
from pdd.core.units import Seconds
from pdd.core.view import RequestView


def should_filter(view: RequestView, predicted_wait: Seconds | None) -> bool:
    """Whether a request that would relay stays with relay decode: it will be done before main decode could begin, and
    may be.

    Asked once, when prefill has just ended: whoever turns into a relay later has most of its transfer behind it.
    """
    steered = view.steering.route is not None or view.steering.handoff_after_tokens is not None
    if view.settings.filter is FilterRule.OFF or steered or view.route is not None or not view.main_available:
        return False
    if view.filtered_last_turn or not view.may_filter or view.relay_load > view.settings.one_shot_load:
        return False
    itl = view.roles[Role.RELAY_DECODE].pace.unit_s
    if predicted_wait is None or itl is None:
        return False
    return predicted_wait > view.likely_tokens * itl
