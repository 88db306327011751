"""Which route a request takes after prefill: straight to main decode, or over relay decode.

A relay pays only when main decode's predicted wait exceeds a setting. What decides is *bytes missing at main decode*, not a
hit rate: prefill and main decode evict independently. Relay decode's room is finite, so its price rises with its load:
those that gain most relay. The other rules are naive rivals, kept for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pdd.core.request import Route
from pdd.core.topology import RouteRule
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.policy.cost import predict_transfer_wait

TURN_FACTOR = 1.25
"""A request that waits for main decode turns into a relay only when its prospects are so much worse than the threshold.

What chose P-MD a moment ago would otherwise turn with every ripple of the line's rate, load relay decode, and so on.
"""
PREPARE_FACTOR = 0.5
"""Relay decode gets the prompt ahead of the choice when the wait is expected to be at least this part of the threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteView:
    """What is known when the question is asked.

    ``missing`` is None while main decode's node has not yet said what it lacks; ``rate`` is what the sender measured,
    or the line's nominal rate while nothing was measured, or None when neither is known. ``backlog`` is what the line owes
    to ``num_others`` transfers and this one, those in the background aside. ``relay_load`` is the share of relay decode's
    places in use. ``turning``: it has been told to wait for main decode, and is asked again. ``hit_rate`` is the part of
    the prompt that prefill's node held.
    """

    missing: Bytes | None
    backlog: Bytes
    num_others: int
    rate: BytesPerSecond | None
    prompt_bytes: Bytes
    relay_available: bool
    threshold: Seconds
    main_available: bool = True
    relay_load: float = 0.0
    turning: bool = False
    rule: RouteRule = RouteRule.MISSING_BYTES
    hit_rate: float = 0.0
    relay_hit_rate: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChoice:
    """A route, main decode's predicted wait (None: unknown) and why, for people."""

    route: Route
    predicted_wait: Seconds | None
    reason: str


def choose_route(view: RouteView) -> RouteChoice:
    """P-MD or P-RLD-MD; who relays to the end (RELAY_ONLY) is decided afterwards, by ``policy.filter``."""
    wait = predicted_wait(view)
    if not view.relay_available:
        return RouteChoice(route=Route.DIRECT, predicted_wait=wait, reason="no relay decode worker is available")
    if not view.main_available:
        return RouteChoice(route=Route.RELAY, predicted_wait=wait, reason="no main decode worker is available")
    match view.rule:
        case RouteRule.MISSING_BYTES | RouteRule.RELAY_ONLY:
            return _by_missing_bytes(view, wait)
        case RouteRule.HIT_RATE:
            return _by_hit_rate(view, wait)
        case RouteRule.DIRECT:
            return RouteChoice(route=Route.DIRECT, predicted_wait=wait, reason="nobody relays by this rule")
        case _:
            assert_never(view.rule)


def should_prepare_relay(view: RouteView) -> bool:
    """Whether relay decode gets the prompt while prefill still computes it, by what is known at the beginning.

    Whoever is not prepared can still relay, but has to wait for the copy; whoever is prepared and doesn't relay has held room
    that others would have used.
    """
    if not view.relay_available:
        return False
    if not view.main_available:
        return True
    match view.rule:
        case RouteRule.MISSING_BYTES | RouteRule.RELAY_ONLY:
            wait, threshold = predicted_wait(view), priced_threshold(view)
            return threshold is not None and (wait is None or wait > PREPARE_FACTOR * threshold)
        case RouteRule.HIT_RATE:
            return _by_hit_rate(view, None).route is Route.RELAY
        case RouteRule.DIRECT:
            return False
        case _:
            assert_never(view.rule)


def missing_bytes(view: RouteView) -> Bytes:
    """An unknown answer counts as "lacks everything": then waiting for main decode is the dearer mistake."""
    return view.prompt_bytes if view.missing is None else view.missing


def predicted_wait(view: RouteView) -> Seconds | None:
    """How long main decode waits for what it lacks; None: of this line nothing can be said."""
    missing = missing_bytes(view)
    if missing == 0:
        return Seconds(0.0)
    if not view.rate:
        return None
    return predict_transfer_wait(missing=missing, backlog=view.backlog, num_others=view.num_others, rate=view.rate)


def priced_threshold(view: RouteView) -> Seconds | None:
    """The wait that is worth a place at relay decode: the fuller it is, the longer. None: no wait is, it is full.

    The naive rule that leaves relays where they are knows no price: it shows what happens then.
    """
    load = 0.0 if view.rule is RouteRule.RELAY_ONLY else view.relay_load
    if load >= 1.0:
        return None
    factor = TURN_FACTOR if view.turning else 1.0
    return Seconds(factor * view.threshold / (1.0 - load))


def _by_missing_bytes(view: RouteView, wait: Seconds | None) -> RouteChoice:
    threshold = priced_threshold(view)
    if wait == 0:
        return RouteChoice(route=Route.DIRECT, predicted_wait=wait, reason="main decode has all of the prompt")
    if threshold is None:
        return RouteChoice(route=Route.DIRECT, predicted_wait=wait, reason="relay decode is full")
    if wait is None:
        reason = "the line's rate is not known" if view.rate is None else "the line stands still"
        return RouteChoice(route=Route.RELAY, predicted_wait=None, reason=reason)
    relation, route = (">", Route.RELAY) if wait > threshold else ("<=", Route.DIRECT)
    reason = f"main decode would wait {wait:.2f} s {relation} {threshold:.2f} s for {missing_bytes(view) / 1e6:.1f} MB"
    return RouteChoice(route=route, predicted_wait=wait, reason=reason)


def _by_hit_rate(view: RouteView, wait: Seconds | None) -> RouteChoice:
    relation, route = ("<", Route.RELAY) if view.hit_rate < view.relay_hit_rate else (">=", Route.DIRECT)
    reason = f"prefill hit {view.hit_rate:.2f} {relation} {view.relay_hit_rate:.2f} of the prompt"
    return RouteChoice(route=route, predicted_wait=wait, reason=reason)
