"""What a router tells Prometheus: each metric's HELP text is its documentation.

Every router owns its registry; nothing is global. Requests are counted from their reports when they end; all else is
read when someone scrapes. A simulated router feeds the same metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pdd.core.request import Role
from pdd.telemetry.figures import RequestFigures, RouterReading
from pdd.telemetry.scrape import ScrapedState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_WAIT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0)
_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_NO_ROUTE = "none"


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    CLIENT_LEFT = "client_left"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"


class RouterMetrics:
    """One router's metrics. ``read`` is called at each scrape and must not block."""

    __slots__ = (
        "_filtered",
        "_handoff_gap",
        "_handoff_rounds",
        "_in_flight",
        "_max_itl",
        "_median_itl",
        "_prompt_blocks",
        "_prompt_tokens",
        "_queue_wait",
        "_registry",
        "_requests",
        "_tokens",
        "_ttft",
        "_ttst",
    )

    def __init__(self, read: Callable[[], RouterReading] = RouterReading) -> None:
        self._registry = CollectorRegistry()
        self._make_counters(self._registry)
        self._make_histograms(self._registry)
        self._registry.register(ScrapedState(read))

    def request_started(self) -> None:
        """A well-formed request goes to the engines; ``request_ended`` must follow."""
        self._in_flight.inc()

    def request_ended(self, outcome: Outcome, figures: RequestFigures | None) -> None:
        """A started request is over; ``figures`` is None when it never began to run."""
        self._in_flight.dec()
        route = figures.route if figures is not None else None
        self._requests.labels(route=route or _NO_ROUTE, outcome=outcome).inc()
        if figures is not None:
            self._count(figures)

    def request_refused(self) -> None:
        """A request was refused before it was started."""
        self._requests.labels(route=_NO_ROUTE, outcome=Outcome.REFUSED).inc()

    def render(self) -> bytes:
        """Everything in Prometheus' text format (``CONTENT_TYPE``)."""
        return generate_latest(self._registry)

    def _count(self, figures: RequestFigures) -> None:
        self._prompt_tokens.inc(figures.num_prompt_tokens)
        self._filtered.inc(figures.filtered)
        self._queue_wait.observe(figures.queued_s)
        self._count_blocks(Role.PREFILL, figures.missing_blocks_at_prefill, figures.num_prompt_blocks)
        self._count_blocks(Role.MAIN_DECODE, figures.missing_blocks_at_main, figures.num_prompt_blocks)
        self._handoff_rounds.inc(figures.handoff_rounds)
        for role, count in figures.tokens_by_role.items():
            self._tokens.labels(role=role).inc(count)
        route = figures.route or _NO_ROUTE
        waits = (
            (self._ttft, figures.ttft_s),
            (self._ttst, figures.ttst_s),
            (self._max_itl, figures.max_itl_s),
            (self._median_itl, figures.median_itl_s),
            (self._handoff_gap, figures.handoff_gap_s),
        )
        for histogram, wait in waits:
            if wait is not None:
                histogram.labels(route=route).observe(wait)

    def _count_blocks(self, role: Role, num_missing: int | None, num_blocks: int) -> None:
        if num_missing is not None:
            self._prompt_blocks.labels(role=role, found="miss").inc(num_missing)
            self._prompt_blocks.labels(role=role, found="hit").inc(num_blocks - num_missing)

    def _make_counters(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "pdd_requests_total",
            "Requests that ended, by route (direct, relay, relay_only; none if it was never chosen) and outcome "
            "(completed, client_left, refused: the request was wrong, unavailable: nobody could serve it, failed).",
            ("route", "outcome"),
            registry=registry,
        )
        self._in_flight = Gauge(
            "pdd_requests_in_flight", "Requests that wait or are being served now.", registry=registry
        )
        self._prompt_tokens = Counter("pdd_prompt_tokens_total", "Prompt tokens of requests.", registry=registry)
        self._tokens = Counter(
            "pdd_output_tokens_total",
            "Tokens sent to clients, by the role that computed them (prefill, relay_decode, main_decode).",
            ("role",),
            registry=registry,
        )
        self._prompt_blocks = Counter(
            "pdd_prompt_blocks_total",
            "Full KV blocks of prompts, by role (prefill, main_decode) and by whether they were found at its node (hit, "
            "miss): as the router believed when prefill began, as main decode's node said.",
            ("role", "found"),
            registry=registry,
        )
        self._filtered = Counter(
            "pdd_requests_filtered_total",
            "Requests whose KV crossed in the background or not at all: long input, short output.",
            registry=registry,
        )
        self._handoff_rounds = Counter(
            "pdd_handoff_rounds_total", "Batches of token IDs handed from relay to main decode.", registry=registry
        )

    def _make_histograms(self, registry: CollectorRegistry) -> None:
        def waiting(name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, documentation, ("route",), buckets=buckets, registry=registry)

        self._queue_wait = Histogram(
            "pdd_queue_wait_seconds",
            "How long requests waited for a place before they began; those that never began count, too.",
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self._ttft = waiting(
            "pdd_ttft_seconds", "Time to first token, from the request's arrival, by route.", _WAIT_BUCKETS
        )
        self._ttst = waiting(
            "pdd_ttst_seconds",
            "Time to second token, by route: what a client waits for main or relay decode, as prefill's token hides the "
            "KV transfer from the time to first token.",
            _WAIT_BUCKETS,
        )
        self._max_itl = waiting(
            "pdd_max_itl_seconds", "Each request's largest gap between two tokens, by route.", _TOKEN_BUCKETS
        )
        self._median_itl = waiting(
            "pdd_median_itl_seconds", "Each request's median gap between two tokens, by route.", _TOKEN_BUCKETS
        )
        self._handoff_gap = waiting(
            "pdd_handoff_gap_seconds",
            "Each relayed request's longest wait between two tokens across a hand-off, by route.",
            _TOKEN_BUCKETS,
        )
