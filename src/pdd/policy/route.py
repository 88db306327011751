"""Which route a request takes after prefill: straight to main decode, or over relay decode.

A relay pays only when main decode's predicted wait exceeds a setting. What decides is *bytes missing at main decode*,
not a hit rate: prefill and main decode evict independently. Relay decode's room is finite, so its price rises with its
load: those that gain most relay. The other rules are naive rivals, kept for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from pdd.core.request import HandoffMode, Route, Steering
from pdd.core.topology import RouteRule
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.core.view import RequestView
from pdd.policy.cost import QUIET_AFTER, predict_transfer_wait
from pdd.policy.filter import should_filter
from pdd.policy.handoff import choose_relay_cap

TURN_FACTOR = 1.25
"""A request that waits for main decode turns into a relay only when its prospects are so much worse than the threshold.

What chose P-MD a moment ago would otherwise turn with every ripple of the line's rate, load relay decode, and so on.
"""
PREPARE_FACTOR = 0.5
"""Relay decode gets the prompt ahead of the choice when the wait is expected to be at least this part of the threshold.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is fixed about a request from the start; ``protocol.relay.RelayPlan`` has the same words.

    ``keeps_relay``: by the rule its relay, if it takes one, goes on to the end.
    """

    prepare_main: bool
    prepare_relay: bool
    keeps_relay: bool
    may_reroute: bool
    relay_floor: int
    relay_cap: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChoice:
    """A route, main decode's predicted wait (None: unknown) and why, for people.

    ``relay_cap``: how many tokens relay decode may emit (None: as many as it takes). ``filtered``: the answer stays
    with relay decode because it will be over by then; it counts against the filter's share.
    """

    route: Route
    predicted_wait: Seconds | None
    reason: str
    relay_cap: int | None = None
    filtered: bool = False


# Before prefill -------------------------------------------------------------------------------------------------------


def prepare(view: RequestView) -> Preparation:
    """What goes out before prefill begins, by what is likely then."""
    steering = view.steering
    may_relay = steering.route is not Route.DIRECT
    floor = _relay_floor(steering)
    capped = may_relay and steering.handoff_after_tokens is not None and steering.handoff is not HandoffMode.CATCH_UP
    by_rule = view.settings.route is RouteRule.RELAY_ONLY and steering.route is None
    keeps_relay = by_rule and _by_pin_or_rule(view).route is Route.RELAY
    return Preparation(
        prepare_main=not keeps_relay,
        prepare_relay=may_relay and view.max_tokens > 1 and should_prepare_relay(view),
        keeps_relay=keeps_relay,
        may_reroute=may_relay,
        relay_floor=floor,
        relay_cap=floor if capped else None,
    )


def _relay_floor(steering: Steering) -> int:
    if steering.route is Route.DIRECT:
        return 0
    if steering.handoff_after_tokens is not None:
        return max(1, steering.handoff_after_tokens)
    return 1 if steering.route is Route.RELAY else 0


def should_prepare_relay(view: RequestView) -> bool:
    """Whether relay decode gets the prompt while prefill still computes it.

    Whoever is not prepared can still relay, but has to wait for the copy; whoever is prepared and doesn't relay has
    held room that others would have used. A pinned relay is prepared, too, only while relay decode has a place.
    """
    if not view.relay_available:
        return False
    if view.steering.route is Route.RELAY:
        return not _is_full(view)
    if not view.main_available:
        return True
    match view.settings.route:
        case RouteRule.MISSING_BYTES | RouteRule.RELAY_ONLY:
            wait, threshold = predicted_wait(view), priced_threshold(view)
            return threshold is not None and (wait is None or wait > PREPARE_FACTOR * threshold)
        case RouteRule.HIT_RATE:
            return _by_hit_rate(view, None).route is Route.RELAY
        case RouteRule.DIRECT:
            return False
        case _:
            assert_never(view.settings.route)


# After prefill --------------------------------------------------------------------------------------------------------


def choose_route(view: RequestView) -> RouteChoice:
    """The route by what is known now: by the request's pin, else by the rule; relays that pay stay with
    relay decode.
    """
    choice = _by_pin_or_rule(view)
    if view.keeps_relay:
        route = Route.RELAY_ONLY if view.relay_available else Route.DIRECT
        return replace(choice, route=route, reason="the rule keeps relays here")
    if choice.route is not Route.RELAY:
        return choice
    if should_filter(view, choice.predicted_wait):
        reason = f"{choice.reason}; relay decode will be done by then"
        return replace(choice, route=Route.RELAY_ONLY, reason=reason, filtered=True)
    return replace(choice, relay_cap=choose_relay_cap(view, choice.predicted_wait))


def _by_pin_or_rule(view: RequestView) -> RouteChoice:
    """A pinned route goes before the policy's, as long as it exists: no wish has a right to room that others have."""
    pin = view.steering.route
    if pin is Route.RELAY and view.relay_available and _is_full(view):
        return _choice(Route.DIRECT, None, "the request asked for a relay, but relay decode is full")
    if pin is Route.DIRECT or (pin is Route.RELAY and view.relay_available):
        return _choice(pin, None, "the request asked for it")
    return _by_rule(view)


def _is_full(view: RequestView) -> bool:
    """While no main decode is up, cluster A goes on alone, full or not."""
    return view.main_available and view.relay_load >= 1.0


def _by_rule(view: RequestView) -> RouteChoice:
    wait = predicted_wait(view)
    if not view.relay_available:
        return _choice(Route.DIRECT, wait, "no relay decode worker is available")
    if not view.main_available:
        return _choice(Route.RELAY, wait, "no main decode worker is available")
    match view.settings.route:
        case RouteRule.MISSING_BYTES | RouteRule.RELAY_ONLY:
            return _by_missing_bytes(view, wait)
        case RouteRule.HIT_RATE:
            return _by_hit_rate(view, wait)
        case RouteRule.DIRECT:
            return _choice(Route.DIRECT, wait, "nobody relays by this rule")
        case _:
            assert_never(view.settings.route)


def _by_missing_bytes(view: RequestView, wait: Seconds | None) -> RouteChoice:
    threshold = priced_threshold(view)
    if wait == 0:
        return _choice(Route.DIRECT, wait, "main decode has all of the prompt")
    if threshold is None:
        return _choice(Route.DIRECT, wait, "relay decode is full")
    if wait is None:
        known = rate(view) is not None
        return _choice(Route.RELAY, None, "the line stands still" if known else "the line's rate is not known")
    relation, route = (">", Route.RELAY) if wait > threshold else ("<=", Route.DIRECT)
    reason = f"main decode would wait {wait:.2f} s {relation} {threshold:.2f} s for {missing_bytes(view) / 1e6:.1f} MB"
    return _choice(route, wait, reason)


def _by_hit_rate(view: RequestView, wait: Seconds | None) -> RouteChoice:
    limit = view.settings.relay_hit_rate
    relation, route = ("<", Route.RELAY) if view.hit_rate < limit else (">=", Route.DIRECT)
    return _choice(route, wait, f"prefill hit {view.hit_rate:.2f} {relation} {limit:.2f} of the prompt")


def _choice(route: Route, wait: Seconds | None, reason: str) -> RouteChoice:
    return RouteChoice(route=route, predicted_wait=wait, reason=reason)


# What it goes by ------------------------------------------------------------------------------------------------------


def missing_bytes(view: RequestView) -> Bytes:
    """An unknown answer counts as "lacks everything": then waiting for main decode is the dearer mistake."""
    return Bytes((view.num_blocks if view.num_missing is None else view.num_missing) * view.block_bytes)


def rate(view: RequestView) -> BytesPerSecond | None:
    """Of the link to main decode. Its belief knows of a silence once the source has said what is lacked; a source that
    says nothing is silent, too.
    """
    believed = None if view.link is None else view.link.rate
    if believed is None or view.idle < QUIET_AFTER:
        return believed
    return BytesPerSecond(min(believed, view.block_bytes / view.idle))


def predicted_wait(view: RequestView) -> Seconds | None:
    """How long main decode waits for what it lacks; None: of this line nothing can be said."""
    missing, carried = missing_bytes(view), rate(view)
    if missing == 0:
        return Seconds(0.0)
    if view.link is None or not carried:
        return None
    return predict_transfer_wait(missing=missing, backlog=view.link.backlog, num_others=view.num_others, rate=carried)


def priced_threshold(view: RequestView) -> Seconds | None:
    """The wait that is worth a place at relay decode: the fuller it is, the longer. None: no wait is, it is full.

    The naive rule that leaves relays where they are knows no price: it shows what happens then.
    """
    load = 0.0 if view.settings.route is RouteRule.RELAY_ONLY else view.relay_load
    if load >= 1.0:
        return None
    factor = TURN_FACTOR if view.route is Route.DIRECT else 1.0
    return Seconds(factor * view.settings.relay_threshold_s / (1.0 - load))
