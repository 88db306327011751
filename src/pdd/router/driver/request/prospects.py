"""One request's prospects: what its choices depend on, looked up when a choice is due, and the choices themselves."""

from __future__ import annotations

from dataclasses import dataclass

from pdd.belief.links import QUIET_AFTER, Links
from pdd.core.kv_format import KvFormat
from pdd.core.request import HandoffMode, Role, Route
from pdd.core.topology import FilterRule, RouteRule
from pdd.core.units import Bytes, BytesPerSecond
from pdd.policy.filter import FilterView, should_filter
from pdd.policy.handoff import choose_relay_cap
from pdd.policy.route import RouteChoice, RouteView
from pdd.protocol.relay import AskHandoff, RelayPlan, RouteChosen
from pdd.router.base import TokenRequest
from pdd.router.driver.request.choices import decide_handoff, decide_route, plan_relay, should_prepare
from pdd.router.driver.request.seats import RequestSeats
from pdd.router.driver.settings import DriverSettings
from pdd.router.driver.traffic import Traffic
from pdd.router.driver.transfers.kv_paths import KvPaths
from pdd.router.driver.workers.conversations import Conversation
from pdd.router.driver.workers.directory import BlockDirectory
from pdd.router.driver.workers.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """A route for the machine, and what people want to know of it."""

    chosen: RouteChosen
    reason: str
    filtered: bool


class Prospects:
    """Asked by ``RequestRun``: ``plan`` once, first; then ``route`` and ``handoff`` whenever the machine asks."""

    def __init__(
        self,
        request: TokenRequest,
        *,
        paths: KvPaths,
        seats: RequestSeats,
        conversation: Conversation | None,
        pool: Pool,
        links: Links,
        directory: BlockDirectory,
        traffic: Traffic,
        kv_format: KvFormat,
        settings: DriverSettings,
    ) -> None:
        self._request = request
        self._paths = paths
        self._seats = seats
        self._conversation = conversation
        self._pool = pool
        self._links = links
        self._directory = directory
        self._traffic = traffic
        self._block_bytes = kv_format.block_bytes
        self._settings = settings
        self._hit_rate = 0.0
        self._stays_with_relay = False
        self._route: Route | None = None

    # The plan ---------------------------------------------------------------------------------------------------------

    def plan(self) -> RelayPlan:
        """Relay decode gets the prompt ahead only if the request is likely to relay: its room is others' room."""
        self._traffic.filter_share.saw_request()
        view, pinned = self._expectation(), self._request.steering.route
        by_rule = self._settings.policy.route is RouteRule.RELAY_ONLY and pinned is None
        self._stays_with_relay = by_rule and decide_route(self._request.steering, view).route is Route.RELAY
        return plan_relay(
            self._request,
            prepare_main=not self._stays_with_relay,
            prepare_relay=should_prepare(self._request.steering, view),
            settings=self._settings,
        )

    def _expectation(self) -> RouteView:
        """What is likely, before anybody was asked: the router's own directory says what main decode lacks."""
        hashes = self._paths.hashes
        prefill, main = self._seats.take(Role.PREFILL), self._seats.take(Role.MAIN_DECODE)
        missing = len(hashes)
        if hashes and prefill is not None:
            self._hit_rate = self._directory.prefix_at(prefill.worker.node.node, hashes) / len(hashes)
        if main is not None:
            missing -= self._directory.prefix_at(main.worker.node.node, hashes)
        backlog, num_orders, rate = Bytes(0), 0, None
        if prefill is not None and main is not None:
            forecast = self._links.view(prefill.worker.site, main.worker.site, self._pool.clock.now())
            backlog, num_orders, rate = forecast.backlog, forecast.num_orders, forecast.rate
        size = Bytes(missing * self._block_bytes)
        return self._view(missing=size, backlog=Bytes(backlog + size), num_others=num_orders, rate=rate)

    # The route --------------------------------------------------------------------------------------------------------

    def route(self) -> Routing:
        """The route by what is known now."""
        view = self._situation()
        choice = decide_route(self._request.steering, view)
        filtered = False
        if self._stays_with_relay:
            route = Route.RELAY_ONLY if view.relay_available else Route.DIRECT
            choice = RouteChoice(route=route, predicted_wait=choice.predicted_wait, reason="the rule keeps relays here")
        elif self._is_singular(choice, view):
            self._traffic.filter_share.filtered_one()
            filtered = True
            reason = f"{choice.reason}; relay decode will be done by then"
            choice = RouteChoice(route=Route.RELAY_ONLY, predicted_wait=choice.predicted_wait, reason=reason)
        self._route = choice.route
        chosen = RouteChosen(route=choice.route, relay_cap=self._relay_cap(choice, view))
        return Routing(chosen=chosen, reason=choice.reason, filtered=filtered)

    def _is_singular(self, choice: RouteChoice, view: RouteView) -> bool:
        """Asked once, when prefill has just ended: whoever turns into a relay later has most of its transfer behind it."""
        policy, steering = self._settings.policy, self._request.steering
        steered = steering.route is not None or steering.handoff_after_tokens is not None
        if policy.filter is FilterRule.OFF or steered or self._route is not None or choice.route is not Route.RELAY:
            return False
        if not view.main_available:
            return False
        return should_filter(
            FilterView(
                predicted_wait=choice.predicted_wait,
                likely_tokens=self._traffic.lengths.likely(self._request.max_tokens),
                itl=self._pool.pace(Role.RELAY_DECODE).unit_s,
                filtered_last_turn=self._conversation is not None and self._conversation.last_filtered,
                within_share=self._traffic.filter_share.allows_one,
                relay_load=view.relay_load,
                max_load=policy.one_shot_load,
            )
        )

    def _relay_cap(self, choice: RouteChoice, view: RouteView) -> int | None:
        if choice.route is not Route.RELAY or self._request.steering.route is not None or not view.main_available:
            return None
        return choose_relay_cap(
            predicted_wait=choice.predicted_wait,
            itl=self._pool.pace(Role.RELAY_DECODE).unit_s,
            relay_load=view.relay_load,
            one_shot_load=self._settings.policy.one_shot_load,
        )

    def _situation(self) -> RouteView:
        """What main decode's node has said that it lacks, and how fast the line to it is."""
        missing, transfer = self._paths.missing_at_main(), self._paths.to_main
        missing_bytes = None if missing is None else Bytes(missing * self._block_bytes)
        if transfer is None:
            return self._view(missing=missing_bytes, backlog=Bytes(0), num_others=0, rate=None)
        forecast = self._links.view(*transfer.spec.ends, self._pool.clock.now())
        rate = forecast.rate
        if rate is not None and transfer.idle >= QUIET_AFTER:
            # The line book knows of a silence once the source has said what is lacked; one that says nothing is silent, too.
            rate = BytesPerSecond(min(rate, self._block_bytes / transfer.idle))
        counts = bool(missing) and not transfer.settled
        return self._view(
            missing=missing_bytes,
            backlog=forecast.backlog,
            num_others=max(0, forecast.num_orders - counts),
            rate=rate,
        )

    def _view(
        self, *, missing: Bytes | None, backlog: Bytes, num_others: int, rate: BytesPerSecond | None
    ) -> RouteView:
        policy = self._settings.policy
        return RouteView(
            missing=missing,
            backlog=backlog,
            num_others=num_others,
            rate=rate,
            prompt_bytes=self._paths.prompt_bytes,
            relay_available=self._pool.has(Role.RELAY_DECODE) and not self._paths.relay_refused,
            main_available=self._pool.has(Role.MAIN_DECODE),
            relay_load=self._other_load(),
            turning=self._route is Route.DIRECT,
            threshold=policy.relay_threshold_s,
            rule=policy.route,
            hit_rate=self._hit_rate,
            relay_hit_rate=policy.relay_hit_rate,
        )

    def _other_load(self) -> float:
        """Relay decode's load by other requests: a place that this one already has costs nobody anything more."""
        capacity = self._pool.capacity(Role.RELAY_DECODE)
        own = 1 / capacity if self._paths.is_at_relay and capacity else 0.0
        return self._pool.load(Role.RELAY_DECODE) - own

    # The hand-off -----------------------------------------------------------------------------------------------------

    def handoff(self, question: AskHandoff) -> HandoffMode:
        """How to hand over by relay decode's load at this moment."""
        load = self._pool.load(Role.RELAY_DECODE)
        return decide_handoff(self._request.steering, question, self._settings.policy, relay_load=load)
