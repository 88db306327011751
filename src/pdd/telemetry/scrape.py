"""The metrics that are read from a router when someone scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pdd.belief.worker_state import WorkerStatus
from pdd.core.replication import NodeStats
from pdd.core.request import Role
from pdd.policy.admission import ShedReason
from pdd.telemetry.figures import RouterReading


class ScrapedState(Collector):
    """Reads the router at each scrape, so that a node that is gone leaves no stale figure behind."""

    def __init__(self, read: Callable[[], RouterReading]) -> None:
        self._read = read

    def describe(self) -> list[Metric]:
        """Nothing in advance: registering must not ask anybody."""
        return []

    def collect(self) -> Iterator[Metric]:
        reading = self._read()
        yield from _collect_requests(reading)
        yield from _collect_roles(reading.workers)
        yield from _collect_workers(reading.workers)
        yield from _collect_links(reading)
        yield from _collect_nodes(reading.nodes)


def _collect_requests(reading: RouterReading) -> Iterator[Metric]:
    yield GaugeMetricFamily("pdd_requests_served", "Requests that have a place now.", value=reading.num_served)
    yield GaugeMetricFamily("pdd_requests_queued", "Requests that wait for a place now.", value=reading.num_queued)
    shed = CounterMetricFamily(
        "pdd_requests_shed",
        "Requests turned away before they began, by reason (queue_full, tenant_limit, queue_too_long: its turn would not "
        "come in time, queue_timeout: it did not, no_room: main decode's node had none in time, no_worker).",
        labels=("reason",),
    )
    for reason in ShedReason:
        shed.add_metric((reason,), reading.shed.get(reason, 0))
    yield shed
    yield GaugeMetricFamily(
        "pdd_transfers",
        "KV transfers that hold something, those of ended requests included.",
        value=reading.num_transfers,
    )
    yield GaugeMetricFamily(
        "pdd_conversations", "Conversations that keep their place and their pins.", value=reading.num_conversations
    )


def _collect_roles(workers: Sequence[WorkerStatus]) -> Iterator[Metric]:
    up = GaugeMetricFamily("pdd_workers_up", "Workers that answer, by role.", labels=("role",))
    configured = GaugeMetricFamily("pdd_workers_configured", "Workers of the topology, by role.", labels=("role",))
    for role in Role:
        of_role = [worker for worker in workers if worker.role is role]
        up.add_metric((role,), sum(worker.up for worker in of_role))
        configured.add_metric((role,), len(of_role))
    yield from (up, configured)


def _collect_workers(workers: Sequence[WorkerStatus]) -> Iterator[Metric]:
    labels = ("worker", "role")
    up = GaugeMetricFamily("pdd_worker_up", "1 for a worker that answers, 0 for one that does not.", labels=labels)
    running = GaugeMetricFamily("pdd_worker_requests", "Requests that have a seat at a worker.", labels=labels)
    room = GaugeMetricFamily("pdd_worker_max_batch", "Requests that a worker runs at the same time.", labels=labels)
    restarts = CounterMetricFamily("pdd_worker_restarts", "How often another process answered.", labels=labels)
    breaker = GaugeMetricFamily(
        "pdd_worker_breaker",
        "1 for the state of a worker's circuit breaker (closed, open, half_open), which opens when generations break off.",
        labels=(*labels, "state"),
    )
    for worker in workers:
        names = (worker.worker, worker.role)
        up.add_metric(names, worker.up)
        running.add_metric(names, worker.running)
        room.add_metric(names, worker.max_batch)
        restarts.add_metric(names, worker.restarts)
        for state in type(worker.breaker):
            breaker.add_metric((*names, state.value), worker.breaker is state)
    yield from (up, running, room, restarts, breaker)


def _collect_links(reading: RouterReading) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "pdd_wan_kv_bytes",
        "KV payload in bytes sent between clusters, also after the request that it was for had ended.",
        value=reading.wan_kv_bytes,
    )
    backlog = GaugeMetricFamily(
        "pdd_link_backlog_bytes",
        "KV payload that senders still have to send over the link from one cluster to another, by class (normal, background).",
        labels=("source", "target", "class"),
    )
    rate = GaugeMetricFamily(
        "pdd_link_rate_bytes_per_second",
        "What the router believes that the link from one cluster to another carries.",
        labels=("source", "target"),
    )
    for link in reading.links:
        name = (link.source, link.target)
        for send_class, size in link.backlog.items():
            backlog.add_metric((*name, send_class), size)
        if link.rate is not None:
            rate.add_metric(name, link.rate)
    yield from (backlog, rate)


def _collect_nodes(nodes: Sequence[NodeStats]) -> Iterator[Metric]:
    blocks = GaugeMetricFamily(
        "pdd_node_blocks",
        "Blocks of a KV node by state: capacity, held, leased (held and in use), pinned (held for a conversation), reserved, writing.",
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


def _block_states(node: NodeStats) -> Mapping[str, int]:
    return {
        "capacity": node.capacity_blocks,
        "held": node.held_blocks,
        "leased": node.leased_blocks,
        "pinned": node.pinned_blocks,
        "reserved": node.reserved_blocks,
        "writing": node.writing_blocks,
    }
