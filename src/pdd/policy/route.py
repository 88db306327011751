"""Which route a request takes after prefill: straight to main decode, or over relay decode.

A relay pays only when main decode's predicted wait exceeds a setting. What decides is *bytes missing at main decode*, not a
hit rate: prefill and main decode evict independently.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdd.core.request import Route
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.policy.cost import predict_transfer_wait


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteView:
    """What is known when the question is asked.

    ``missing`` is None while main decode's node has not yet said what it lacks; ``rate`` is what the sender measured,
    or the line's nominal rate while nothing was measured, or None when neither is known.
    """

    missing: Bytes | None
    backlog: Bytes
    rate: BytesPerSecond | None
    prompt_bytes: Bytes
    relay_available: bool
    threshold: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChoice:
    """A route, main decode's predicted wait (None: unknown) and why, for people."""

    route: Route
    predicted_wait: Seconds | None
    reason: str


def choose_route(view: RouteView) -> RouteChoice:
    """An unknown answer counts as "lacks everything": then waiting for main decode is the dearer mistake."""
    if not view.relay_available:
        return RouteChoice(route=Route.DIRECT, predicted_wait=None, reason="no relay decode worker is available")
    missing = view.prompt_bytes if view.missing is None else view.missing
    if missing == 0:
        return RouteChoice(route=Route.DIRECT, predicted_wait=Seconds(0.0), reason="main decode has all of the prompt")
    if not view.rate:
        reason = "the line's rate is not known" if view.rate is None else "the line stands still"
        return RouteChoice(route=Route.RELAY, predicted_wait=None, reason=reason)
    wait = predict_transfer_wait(missing=missing, backlog=view.backlog, rate=view.rate)
    relation, route = (">", Route.RELAY) if wait > view.threshold else ("<=", Route.DIRECT)
    reason = f"main decode would wait {wait:.2f} s {relation} {view.threshold:.2f} s for {missing / 1e6:.1f} MB"
    return RouteChoice(route=route, predicted_wait=wait, reason=reason)
