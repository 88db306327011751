"""What policies see of one request when a choice is due: gathered from beliefs, from its seats and its transfers."""

from __future__ import annotations

from dataclasses import replace

from pdd.belief.beliefs import Beliefs
from pdd.belief.conversations import Conversation
from pdd.belief.worker_state import Seat
from pdd.core.clock import Clock
from pdd.core.request import Route
from pdd.core.topology import PolicyTable
from pdd.core.units import Bytes, Seconds
from pdd.core.view import LinkView, RequestView
from pdd.router.base import TokenRequest
from pdd.router.driver.request.kv_paths import KvPaths
from pdd.router.driver.workers.worker import Worker


class Outlook:
    """One request's. ``before_prefill`` once, first; then ``now``. It only looks: nothing changes because it was asked.

    Attributes:
        route: what was chosen last.
        keeps_relay: by the rule, a relay goes on to the end.
    """

    def __init__(
        self,
        request: TokenRequest,
        *,
        paths: KvPaths,
        conversation: Conversation | None,
        beliefs: Beliefs[Worker],
        settings: PolicyTable,
        clock: Clock,
    ) -> None:
        self.route: Route | None = None
        self.keeps_relay = False
        self._request = request
        self._paths = paths
        self._filtered_last_turn = conversation is not None and conversation.last_filtered
        self._beliefs = beliefs
        self._settings = settings
        self._clock = clock
        self._hit_rate = 0.0

    def before_prefill(self, prefill: Seat[Worker] | None, main: Seat[Worker] | None) -> RequestView:
        """What is likely, before anybody was asked: the router's own beliefs say what main decode lacks."""
        hashes, prefixes = self._paths.hashes, self._beliefs.prefixes
        missing, link = len(hashes), None
        if hashes and prefill is not None:
            self._hit_rate = prefixes.prefix_at(prefill.worker.site.node, hashes) / len(hashes)
        if main is not None:
            missing -= prefixes.prefix_at(main.worker.site.node, hashes)
        if prefill is not None and main is not None:
            others = self._beliefs.links.view(prefill.worker.site, main.worker.site, self._clock.now())
            link = replace(others, backlog=Bytes(others.backlog + missing * self._beliefs.block_bytes))
        return self._view(num_missing=missing, link=link, num_others=0 if link is None else link.num_orders)

    def now(self) -> RequestView:
        """What main decode's node has said that it lacks, and how fast the link to it is."""
        missing, transfer = self._paths.missing_at_main(), self._paths.to_main
        if transfer is None:
            return self._view(num_missing=missing, link=None)
        link = self._beliefs.links.view(*transfer.spec.ends, self._clock.now())
        is_counted = bool(missing) and not transfer.settled
        num_others = max(0, link.num_orders - is_counted)
        return self._view(num_missing=missing, link=link, num_others=num_others, idle=transfer.idle)

    def _view(
        self, *, num_missing: int | None, link: LinkView | None, num_others: int = 0, idle: Seconds = Seconds(0.0)
    ) -> RequestView:
        request, beliefs = self._request, self._beliefs
        return RequestView(
            steering=request.steering,
            settings=self._settings,
            roles=beliefs.roles(),
            link=link,
            num_others=num_others,
            idle=idle,
            block_bytes=beliefs.block_bytes,
            num_blocks=len(self._paths.hashes),
            num_missing=num_missing,
            max_tokens=request.max_tokens,
            likely_tokens=beliefs.lengths.likely(request.max_tokens),
            hit_rate=self._hit_rate,
            has_relay_seat=self._paths.is_at_relay,
            relay_refused=self._paths.relay_refused,
            route=self.route,
            keeps_relay=self.keeps_relay,
            filtered_last_turn=self._filtered_last_turn,
            may_filter=beliefs.filter_share.allows_one,
        )
