"""Three systems on one topology: PDD as it is, and what it is measured against.

Same-datacenter disaggregation gets as much memory for main decode in chips of prefill's type: that is all it can buy there.
"""

from __future__ import annotations

from enum import StrEnum
from math import ceil

from msgspec.structs import replace

from pdd.core.errors import ConfigError
from pdd.core.request import Role
from pdd.core.topology import EngineTable, FilterRule, NodeTable, PolicyTable, RouteRule, Topology
from pdd.sim.profile import load_hardware


class System(StrEnum):
    """Who is measured."""

    SAME_DC = "same_dc"
    """Prefill and main decode in one datacenter: no line between them, no relay."""
    CROSS_DC = "cross_dc"
    """Across the line, nothing hidden: no relay, no filter; the same decode-side cache."""
    PDD = "pdd"


def as_system(topology: Topology, system: System) -> Topology:
    """``topology`` turned into ``system``."""
    match system:
        case System.PDD:
            return topology
        case System.CROSS_DC:
            return with_policy(topology, replace(topology.router.policy, route=RouteRule.DIRECT, filter=FilterRule.OFF))
        case System.SAME_DC:
            return _in_one_datacenter(as_system(topology, System.CROSS_DC))


def with_policy(topology: Topology, policy: PolicyTable) -> Topology:
    """Decided by ``policy``."""
    return replace(topology, router=replace(topology.router, policy=policy))


def with_line_rate(topology: Topology, bits_per_s: float) -> Topology:
    """Every line between clusters carries so much."""
    return replace(topology, links=tuple(replace(link, rate_bits_per_s=bits_per_s) for link in topology.links))


def _in_one_datacenter(topology: Topology) -> Topology:
    cluster = topology.router.cluster
    prefill = next(iter(topology.engines_of(Role.PREFILL)), None)
    if prefill is None:
        raise ConfigError(f"topology {topology.name!r} has no prefill engine")
    return replace(
        topology,
        nodes=tuple(_moved(node, cluster) for node in topology.nodes),
        engines=tuple(_rebuilt(engine, prefill, cluster) for engine in topology.engines),
        links=(),
    )


def _moved(node: NodeTable, cluster: str) -> NodeTable:
    return replace(node, cluster=cluster)


def _rebuilt(engine: EngineTable, like: EngineTable, cluster: str) -> EngineTable:
    """In ``cluster``, of ``like``'s chips."""
    if engine.hardware is None or like.hardware is None:
        return replace(engine, cluster=cluster)
    memory = engine.num_chips * load_hardware(engine.hardware).memory_bytes
    num_chips = ceil(memory / load_hardware(like.hardware).memory_bytes)
    return replace(engine, cluster=cluster, hardware=like.hardware, num_chips=num_chips)
