"""What a router tells Prometheus: each metric's HELP text is its documentation.

Every router owns its registry; nothing is global. Requests are counted from their reports when they end; nodes and
workers are asked when someone scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pdd.core.ids import NodeId
from pdd.core.request import Role, Route
from pdd.core.units import Bytes, Seconds

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


class RequestFigures(Protocol):
    """What is counted of a finished request; ``router.base.RequestReport`` has it."""

    @property
    def route(self) -> Route | None: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def tokens_by_role(self) -> Mapping[Role, int]: ...
    @property
    def ttft_s(self) -> Seconds | None: ...
    @property
    def ttst_s(self) -> Seconds | None: ...
    @property
    def max_itl_s(self) -> Seconds | None: ...
    @property
    def median_itl_s(self) -> Seconds | None: ...
    @property
    def handoff_gap_s(self) -> Seconds | None: ...
    @property
    def handoff_rounds(self) -> int: ...


class NodeFigures(Protocol):
    """What is shown of a KV node; ``kvnode.base.NodeStats`` has it."""

    @property
    def node(self) -> NodeId: ...
    @property
    def capacity_blocks(self) -> int: ...
    @property
    def held_blocks(self) -> int: ...
    @property
    def leased_blocks(self) -> int: ...
    @property
    def reserved_blocks(self) -> int: ...
    @property
    def writing_blocks(self) -> int: ...
    @property
    def orders(self) -> int: ...
    @property
    def watches(self) -> int: ...
    @property
    def sent_bytes(self) -> Mapping[str, int]: ...
    @property
    def received_bytes(self) -> Mapping[str, int]: ...
    @property
    def evictions(self) -> int: ...
    @property
    def digest_failures(self) -> int: ...


def no_nodes() -> Sequence[NodeFigures]:
    """For a router that watches no nodes."""
    return ()


def no_workers() -> Mapping[Role, tuple[int, int]]:
    """For a router that watches no workers."""
    return {}


def no_bytes() -> Bytes:
    """For a router without transfers."""
    return Bytes(0)


class RouterMetrics:
    """One router's metrics.

    ``nodes`` gives the newest figures of the nodes that answer; ``workers`` gives (up, configured) workers by role;
    ``wan_kv_bytes`` the KV payload sent between clusters so far. They are called at each scrape and must not block.
    """

    __slots__ = (
        "_handoff_gap",
        "_handoff_rounds",
        "_in_flight",
        "_max_itl",
        "_median_itl",
        "_prompt_tokens",
        "_registry",
        "_requests",
        "_tokens",
        "_ttft",
        "_ttst",
    )

    def __init__(
        self,
        *,
        nodes: Callable[[], Iterable[NodeFigures]] = no_nodes,
        workers: Callable[[], Mapping[Role, tuple[int, int]]] = no_workers,
        wan_kv_bytes: Callable[[], Bytes] = no_bytes,
    ) -> None:
        self._registry = CollectorRegistry()
        self._make_counters(self._registry)
        self._make_histograms(self._registry)
        self._registry.register(_Scraped(nodes, workers, wan_kv_bytes))

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

    def _make_counters(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "pdd_requests_total",
            "Requests that ended, by route (direct, relay; none if it was never chosen) and outcome (completed, "
            "client_left, refused: the request was wrong, unavailable: nobody could serve it, failed).",
            ("route", "outcome"),
            registry=registry,
        )
        self._in_flight = Gauge("pdd_requests_in_flight", "Requests being served now.", registry=registry)
        self._prompt_tokens = Counter("pdd_prompt_tokens_total", "Prompt tokens of requests.", registry=registry)
        self._tokens = Counter(
            "pdd_output_tokens_total",
            "Tokens sent to clients, by the role that computed them (prefill, relay_decode, main_decode).",
            ("role",),
            registry=registry,
        )
        self._handoff_rounds = Counter(
            "pdd_handoff_rounds_total", "Batches of token IDs handed from relay to main decode.", registry=registry
        )

    def _make_histograms(self, registry: CollectorRegistry) -> None:
        def waiting(name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, documentation, ("route",), buckets=buckets, registry=registry)

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


class _Scraped(Collector):
    """Asks nodes and workers at each scrape, so that a node that is gone leaves no stale figure behind."""

    def __init__(
        self,
        nodes: Callable[[], Iterable[NodeFigures]],
        workers: Callable[[], Mapping[Role, tuple[int, int]]],
        wan_kv_bytes: Callable[[], Bytes],
    ) -> None:
        self._nodes = nodes
        self._workers = workers
        self._wan_kv_bytes = wan_kv_bytes

    def describe(self) -> list[Metric]:
        """Nothing in advance: registering must not ask anybody."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_workers()
        yield CounterMetricFamily(
            "pdd_wan_kv_bytes",
            "KV payload in bytes sent between clusters, also after the request that it was for had ended.",
            value=self._wan_kv_bytes(),
        )
        yield from _collect_nodes(tuple(self._nodes()))

    def _collect_workers(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("pdd_workers_up", "Workers that answer, by role.", labels=("role",))
        configured = GaugeMetricFamily("pdd_workers_configured", "Workers of the topology, by role.", labels=("role",))
        for role, (num_up, num_configured) in self._workers().items():
            up.add_metric((role,), num_up)
            configured.add_metric((role,), num_configured)
        yield from (up, configured)


def _collect_nodes(nodes: Sequence[NodeFigures]) -> Iterator[Metric]:
    blocks = GaugeMetricFamily(
        "pdd_node_blocks",
        "Blocks of a KV node by state: capacity, held, leased (held and pinned), reserved, writing.",
        labels=("node", "state"),
    )
    work = GaugeMetricFamily(
        "pdd_node_work", "Standing replication orders and readiness watches of a KV node.", labels=("node", "kind")
    )
    traffic = CounterMetricFamily(
        "pdd_node_payload_bytes", "Block payload in bytes between a KV node and a peer.", labels=("node", "peer", "way")
    )
    mishaps = CounterMetricFamily(
        "pdd_node_blocks_lost", "Blocks evicted, or dropped for a wrong digest, at a KV node.", labels=("node", "why")
    )
    for node in nodes:
        for state, count in _block_states(node).items():
            blocks.add_metric((node.node, state), count)
        work.add_metric((node.node, "orders"), node.orders)
        work.add_metric((node.node, "watches"), node.watches)
        for way, by_peer in (("sent", node.sent_bytes), ("received", node.received_bytes)):
            for peer, size in by_peer.items():
                traffic.add_metric((node.node, peer, way), size)
        mishaps.add_metric((node.node, "evicted"), node.evictions)
        mishaps.add_metric((node.node, "digest"), node.digest_failures)
    yield from (blocks, work, traffic, mishaps)


def _block_states(node: NodeFigures) -> Mapping[str, int]:
    return {
        "capacity": node.capacity_blocks,
        "held": node.held_blocks,
        "leased": node.leased_blocks,
        "reserved": node.reserved_blocks,
        "writing": node.writing_blocks,
    }
