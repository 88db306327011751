"""What an operator may set about the driver, and the link rates that it assumes before anything was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdd.belief.links import DeclaredRates
from pdd.core.ids import TenantId
from pdd.core.topology import LOCAL_RATE, AdmissionTable, HealthTable, PolicyTable, RouterTable, Topology
from pdd.core.units import BytesPerSecond, Seconds, bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """Patience, bounds and the policies' settings. Every wait of the driver is bounded by one of these."""

    policy: PolicyTable = PolicyTable()
    health: HealthTable = HealthTable()
    admission: AdmissionTable = AdmissionTable()
    max_open_requests: int = 256
    """Requests that are served at the same time; more wait, as ``admission`` says."""
    tenant_weights: Mapping[TenantId, float] = field(default_factory=dict[TenantId, float])
    """Shares of a busy system, of the tenants that are known beforehand; any other has weight 1."""
    max_spans_ahead: int = 256
    """How far decoders may run ahead of a slow reader, in spans."""
    max_detached_transfers: int = 32
    """Transfers to main decode that outlive their request; of more one is ended."""
    node_patience: Seconds = Seconds(10.0)
    """How long a KV node may be away or without any progress before a transfer is given up."""
    source_patience: Seconds = Seconds(3.0)
    """How long prefill's node may have none of the missing blocks, or be silent, after prefill has ended."""
    link_patience: Seconds = Seconds(30.0)
    """How long a line that has something to send may deliver nothing at all.

    One block of a slow line may take that long.
    """
    max_queue_patience: Seconds = Seconds(300.0)
    """How long a transfer may be passed over while others are served, however long the queue seems to be."""
    capacity_patience: Seconds = Seconds(1.0)
    """How long an answer that has begun waits for room at a full node; then its engine computes the prompt itself."""
    decode_patience: Seconds = Seconds(30.0)
    """How long an engine that has the prompt's KV may send no token before it counts as lost."""
    prefill_patience: Seconds = Seconds(300.0)
    """The same for the first token of an engine that has to compute the prompt, if it can't be told how long that
    takes.
    """
    node_retry: Seconds = Seconds(0.25)
    route_patience: Seconds = Seconds(0.25)
    """How long the choice of a route waits for main decode's node to say what it lacks."""
    release_patience: Seconds = Seconds(5.0)
    """How long letting go of one thing (a stream, an order) may take."""
    retry_after: Seconds = Seconds(2.0)
    """What a refused client is told to wait."""
    recovery_delay: Seconds = Seconds(1.0)
    resend_delay: Seconds = Seconds(2.0)
    """How long after a failed transfer main decode is sent the prompt again, while another decodes."""
    spare_patience: Seconds = Seconds(300.0)
    """How long a transfer that only gets what lines have to spare may get nothing before it is cut.

    Its patience costs nobody anything: room that others need at a node is taken from it at once.
    """
    local_rate: BytesPerSecond = LOCAL_RATE


def driver_settings(table: RouterTable) -> DriverSettings:
    """What the topology says about the router."""
    return DriverSettings(
        policy=table.policy,
        health=table.health,
        admission=table.admission,
        max_open_requests=table.max_open_requests,
        max_detached_transfers=max(32, table.max_open_requests // 4),
        tenant_weights={TenantId(tenant.name): tenant.weight for tenant in table.tenants},
    )


def declared_rates(topology: Topology) -> DeclaredRates:
    """What the topology says about its links: each direction has the full rate."""
    rates: dict[tuple[str, str], BytesPerSecond] = {}
    for link in topology.links:
        one, other = link.clusters
        rates[one, other] = rates[other, one] = bytes_per_second(link.rate_bits_per_s)
    return rates
