"""What Prometheus reads from a router."""

from dataclasses import dataclass
from enum import StrEnum

from prometheus_client.parser import text_string_to_metric_families

from pdd.belief.links import LinkReading
from pdd.core.ids import NodeId, NodeInstance, WorkerId
from pdd.core.replication import NodeStats
from pdd.core.request import Role, Route, SendClass
from pdd.core.units import Bytes, BytesPerSecond, Seconds
from pdd.policy.admission import ShedReason
from pdd.router.base import RequestReport
from pdd.telemetry.figures import RouterReading
from pdd.telemetry.metrics import Outcome, RouterMetrics

STATS = NodeStats(
    node=NodeId("node-p"),
    instance=NodeInstance("i"),
    capacity_blocks=100,
    held_blocks=40,
    leased_blocks=3,
    reserved_blocks=2,
    writing_blocks=1,
    orders=5,
    watches=6,
    block_bytes=Bytes(1024),
    sent_bytes={"node-md": 7000},
    received_bytes={"node-rld": 8000},
    evictions=9,
    digest_failures=10,
    pinned_blocks=4,
)


class Breaker(StrEnum):
    CLOSED = "closed"
    OPEN = "open"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A worker's."""

    worker: WorkerId
    role: Role
    up: bool = True
    running: int = 0
    max_batch: int = 16
    restarts: int = 0
    breaker: Breaker = Breaker.CLOSED


def samples(metrics: RouterMetrics) -> dict[tuple[str, frozenset], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def value(metrics: RouterMetrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def relayed() -> RequestReport:
    return RequestReport(
        route=Route.RELAY,
        num_prompt_tokens=600,
        tokens_by_role={Role.PREFILL: 1, Role.RELAY_DECODE: 100, Role.MAIN_DECODE: 155},
        ttft_s=Seconds(1.5),
        ttst_s=Seconds(1.6),
        max_itl_s=Seconds(0.3),
        median_itl_s=Seconds(0.02),
        handoff_gap_s=Seconds(0.3),
        handoff_rounds=2,
        wan_kv_bytes=Bytes(28_000_000),
    )


def test_a_request_is_in_flight_until_it_ends():
    metrics = RouterMetrics()
    metrics.request_started()
    assert value(metrics, "pdd_requests_in_flight") == 1
    metrics.request_ended(Outcome.UNAVAILABLE, None)
    assert value(metrics, "pdd_requests_in_flight") == 0
    assert value(metrics, "pdd_requests_total", route="none", outcome="unavailable") == 1


def test_a_report_is_counted_by_route_and_role():
    metrics = RouterMetrics()
    metrics.request_started()
    metrics.request_ended(Outcome.COMPLETED, relayed())
    assert value(metrics, "pdd_requests_total", route="relay", outcome="completed") == 1
    assert value(metrics, "pdd_prompt_tokens_total") == 600
    assert value(metrics, "pdd_output_tokens_total", role="relay_decode") == 100
    assert value(metrics, "pdd_output_tokens_total", role="main_decode") == 155
    assert value(metrics, "pdd_handoff_rounds_total") == 2
    for name, seconds in (("ttft", 1.5), ("ttst", 1.6), ("max_itl", 0.3), ("median_itl", 0.02), ("handoff_gap", 0.3)):
        assert value(metrics, f"pdd_{name}_seconds_sum", route="relay") == seconds
        assert value(metrics, f"pdd_{name}_seconds_count", route="relay") == 1


def test_waits_that_never_happened_are_not_observed():
    metrics = RouterMetrics()
    metrics.request_started()
    metrics.request_ended(Outcome.CLIENT_LEFT, RequestReport(route=Route.DIRECT, ttft_s=Seconds(1.0)))
    assert value(metrics, "pdd_ttft_seconds_count", route="direct") == 1
    assert value(metrics, "pdd_ttst_seconds_count", route="direct") is None
    assert value(metrics, "pdd_handoff_gap_seconds_count", route="direct") is None


def test_a_refused_request_was_never_in_flight():
    metrics = RouterMetrics()
    metrics.request_refused()
    assert value(metrics, "pdd_requests_total", route="none", outcome="refused") == 1
    assert value(metrics, "pdd_requests_in_flight") == 0


def test_nodes_are_shown_as_they_are_at_each_scrape():
    readings = [RouterReading(nodes=[STATS], wan_kv_bytes=Bytes(28_000_000))]
    metrics = RouterMetrics(lambda: readings[-1])
    assert value(metrics, "pdd_wan_kv_bytes_total") == 28_000_000
    assert value(metrics, "pdd_node_blocks", node="node-p", state="held") == 40
    assert value(metrics, "pdd_node_blocks", node="node-p", state="pinned") == 4
    assert value(metrics, "pdd_node_work", node="node-p", kind="watches") == 6
    assert value(metrics, "pdd_node_payload_bytes_total", node="node-p", peer="node-md", way="sent") == 7000
    assert value(metrics, "pdd_node_blocks_lost_total", node="node-p", why="digest") == 10
    readings.append(RouterReading())
    assert value(metrics, "pdd_node_blocks", node="node-p", state="held") is None


def test_workers_are_shown_one_by_one_and_by_role():
    one = Figures(worker=WorkerId("p1"), role=Role.PREFILL, running=3, restarts=2, breaker=Breaker.OPEN)
    other = Figures(worker=WorkerId("p2"), role=Role.PREFILL, up=False)
    metrics = RouterMetrics(lambda: RouterReading(workers=[one, other]))
    assert value(metrics, "pdd_workers_up", role="prefill") == 1
    assert value(metrics, "pdd_workers_configured", role="prefill") == 2
    assert value(metrics, "pdd_workers_configured", role="relay_decode") == 0
    assert value(metrics, "pdd_worker_up", worker="p2", role="prefill") == 0
    assert value(metrics, "pdd_worker_requests", worker="p1", role="prefill") == 3
    assert value(metrics, "pdd_worker_max_batch", worker="p1", role="prefill") == 16
    assert value(metrics, "pdd_worker_restarts_total", worker="p1", role="prefill") == 2
    assert value(metrics, "pdd_worker_breaker", worker="p1", role="prefill", state="open") == 1
    assert value(metrics, "pdd_worker_breaker", worker="p1", role="prefill", state="closed") == 0
    assert value(metrics, "pdd_worker_breaker", worker="p2", role="prefill", state="closed") == 1


def test_links_show_what_they_owe_by_class_and_what_is_believed_of_them():
    known = LinkReading(
        source="A",
        target="B",
        rate=BytesPerSecond(2.5e6),
        backlog={SendClass.NORMAL: Bytes(100), SendClass.BACKGROUND: Bytes(900)},
    )
    unknown = LinkReading(source="A", target="C", rate=None, backlog={})
    metrics = RouterMetrics(lambda: RouterReading(links=[known, unknown]))
    assert (
        samples(metrics)[
            "pdd_link_backlog_bytes", frozenset({("source", "A"), ("target", "B"), ("class", "background")})
        ]
        == 900
    )
    assert (
        samples(metrics)["pdd_link_backlog_bytes", frozenset({("source", "A"), ("target", "B"), ("class", "normal")})]
        == 100
    )
    assert value(metrics, "pdd_link_rate_bytes_per_second", source="A", target="B") == 2.5e6
    assert value(metrics, "pdd_link_rate_bytes_per_second", source="A", target="C") is None


def test_the_line_of_requests_shows_who_waits_and_who_was_turned_away():
    reading = RouterReading(
        num_served=7, num_queued=3, shed={ShedReason.QUEUE_FULL: 5}, num_transfers=9, num_conversations=11
    )
    metrics = RouterMetrics(lambda: reading)
    assert value(metrics, "pdd_requests_served") == 7
    assert value(metrics, "pdd_requests_queued") == 3
    assert value(metrics, "pdd_requests_shed_total", reason="queue_full") == 5
    assert value(metrics, "pdd_requests_shed_total", reason="no_worker") == 0
    assert value(metrics, "pdd_transfers") == 9
    assert value(metrics, "pdd_conversations") == 11


def test_hits_and_misses_are_counted_where_they_are_known():
    metrics = RouterMetrics()
    for missing_at_main in (10, None):
        metrics.request_started()
        report = RequestReport(
            num_prompt_blocks=40, missing_blocks_at_prefill=4, missing_blocks_at_main=missing_at_main
        )
        metrics.request_ended(Outcome.COMPLETED, report)
    assert value(metrics, "pdd_prompt_blocks_total", role="prefill", found="hit") == 72
    assert value(metrics, "pdd_prompt_blocks_total", role="prefill", found="miss") == 8
    assert value(metrics, "pdd_prompt_blocks_total", role="main_decode", found="hit") == 30
    assert value(metrics, "pdd_prompt_blocks_total", role="main_decode", found="miss") == 10


def test_filtered_requests_and_waits_in_line_are_counted():
    metrics = RouterMetrics()
    for filtered, queued in ((True, 0.0), (False, 3.0)):
        metrics.request_started()
        metrics.request_ended(Outcome.COMPLETED, RequestReport(filtered=filtered, queued_s=Seconds(queued)))
    assert value(metrics, "pdd_requests_filtered_total") == 1
    assert value(metrics, "pdd_queue_wait_seconds_sum") == 3
    assert value(metrics, "pdd_queue_wait_seconds_bucket", le="0.01") == 1


def test_every_metric_is_documented_and_named_after_pdd():
    worker = Figures(worker=WorkerId("p"), role=Role.PREFILL)
    metrics = RouterMetrics(lambda: RouterReading(nodes=[STATS], workers=[worker]))
    families = list(text_string_to_metric_families(metrics.render().decode()))
    assert len(families) > 20
    assert all(family.name.startswith("pdd_") and len(family.documentation) > 15 for family in families)


def test_two_routers_in_one_process_count_apart():
    one, other = RouterMetrics(), RouterMetrics()
    one.request_started()
    assert value(other, "pdd_requests_in_flight") == 0
