"""What a request's steering and the policies decide together. Pure functions of what ``router.driver.request.prospects`` sees."""

from __future__ import annotations

from pdd.core.request import HandoffMode, Route
from pdd.core.topology import HandoffRule, PolicyTable
from pdd.policy.handoff import HandoffView, choose_handoff
from pdd.policy.route import RouteChoice, RouteView, choose_route, should_prepare_relay
from pdd.protocol.relay import AskHandoff, RelayPlan
from pdd.router.base import Steering, TokenRequest
from pdd.router.driver.settings import DriverSettings


def plan_relay(
    request: TokenRequest, *, prepare_relay: bool, settings: DriverSettings, prepare_main: bool = True
) -> RelayPlan:
    """What is fixed about a request from the start."""
    steering = request.steering
    may_relay = steering.route is not Route.DIRECT
    floor = _relay_floor(steering)
    capped = may_relay and steering.handoff_after_tokens is not None and steering.handoff is not HandoffMode.CATCH_UP
    return RelayPlan(
        num_prompt_tokens=len(request.prompt),
        max_tokens=request.max_tokens,
        stop_token_ids=request.stop_token_ids,
        prepare_main=prepare_main,
        prepare_relay=prepare_relay and may_relay and request.max_tokens > 1,
        may_reroute=may_relay,
        relay_cap=floor if capped else None,
        relay_floor=floor,
        reroute_interval=settings.policy.reroute_interval_s,
        recovery_delay=settings.recovery_delay,
        resend_delay=settings.resend_delay,
    )


def _relay_floor(steering: Steering) -> int:
    if steering.route is Route.DIRECT:
        return 0
    if steering.handoff_after_tokens is not None:
        return max(1, steering.handoff_after_tokens)
    return 1 if steering.route is Route.RELAY else 0


def decide_route(steering: Steering, view: RouteView) -> RouteChoice:
    """A pinned route goes before the policy's, as long as it exists: no wish has a right to room that others have."""
    if steering.route is Route.RELAY and view.relay_available and _is_full(view):
        reason = "the request asked for a relay, but relay decode is full"
        return RouteChoice(route=Route.DIRECT, predicted_wait=None, reason=reason)
    if steering.route is Route.DIRECT or (steering.route is Route.RELAY and view.relay_available):
        return RouteChoice(route=steering.route, predicted_wait=None, reason="the request asked for it")
    return choose_route(view)


def should_prepare(steering: Steering, view: RouteView) -> bool:
    """Whether relay decode gets the prompt ahead: also for a pinned relay only while it has a place."""
    if steering.route is Route.RELAY:
        return view.relay_available and not _is_full(view)
    return should_prepare_relay(view)


def _is_full(view: RouteView) -> bool:
    """While no main decode is up, cluster A goes on alone, full or not."""
    return view.main_available and view.relay_load >= 1.0


def decide_handoff(
    steering: Steering, question: AskHandoff, policy: PolicyTable, *, relay_load: float = 0.0
) -> HandoffMode:
    """Pinned to catch-up, even small gaps go in batches, but these must shrink all the same."""
    if steering.handoff is HandoffMode.ONE_SHOT:
        return HandoffMode.ONE_SHOT
    pinned = steering.handoff is HandoffMode.CATCH_UP
    return choose_handoff(
        HandoffView(
            gap=question.gap,
            previous_gap=question.previous_gap,
            rounds=question.rounds,
            threshold_tokens=0 if pinned else policy.catch_up_threshold_tokens,
            max_rounds=policy.max_catch_up_rounds,
            rule=HandoffRule.CATCH_UP if pinned else policy.handoff,
            relay_load=relay_load,
            one_shot_load=policy.one_shot_load,
        )
    )
