"""What Prometheus reads from a router."""

from prometheus_client.parser import text_string_to_metric_families

from pdd.core.ids import NodeId, NodeInstance
from pdd.core.request import Role, Route
from pdd.core.units import Bytes, Seconds
from pdd.kvnode.base import NodeStats
from pdd.router.base import RequestReport
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
)


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


def test_nodes_and_workers_are_asked_at_each_scrape():
    nodes, workers = [STATS], {Role.PREFILL: (1, 2)}
    metrics = RouterMetrics(nodes=lambda: nodes, workers=lambda: workers, wan_kv_bytes=lambda: Bytes(28_000_000))
    assert value(metrics, "pdd_wan_kv_bytes_total") == 28_000_000
    assert value(metrics, "pdd_node_blocks", node="node-p", state="held") == 40
    assert value(metrics, "pdd_node_work", node="node-p", kind="watches") == 6
    assert value(metrics, "pdd_node_payload_bytes_total", node="node-p", peer="node-md", way="sent") == 7000
    assert value(metrics, "pdd_node_blocks_lost_total", node="node-p", why="digest") == 10
    assert value(metrics, "pdd_workers_up", role="prefill") == 1
    assert value(metrics, "pdd_workers_configured", role="prefill") == 2
    nodes.clear()
    workers[Role.PREFILL] = (2, 2)
    assert value(metrics, "pdd_node_blocks", node="node-p", state="held") is None
    assert value(metrics, "pdd_workers_up", role="prefill") == 2


def test_every_metric_is_documented_and_named_after_pdd():
    metrics = RouterMetrics(nodes=lambda: [STATS], workers=lambda: {Role.PREFILL: (1, 1)})
    families = list(text_string_to_metric_families(metrics.render().decode()))
    assert len(families) > 10
    assert all(family.name.startswith("pdd_") and len(family.documentation) > 15 for family in families)


def test_two_routers_in_one_process_count_apart():
    one, other = RouterMetrics(), RouterMetrics()
    one.request_started()
    assert value(other, "pdd_requests_in_flight") == 0
