"""Three systems on one topology: PDD as it is, and what it is measured against.

Same-datacenter disaggregation gets as much memory for main decode in chips of prefill's type: that is all it can buy
there.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from math import ceil

from msgspec.structs import replace

from pdd.core.errors import ConfigError
from pdd.core.request import Role
from pdd.core.topology import EngineTable, FilterRule, PolicyTable, RouteRule, Topology
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
            cluster, like = topology.router.cluster, first_of(topology, Role.PREFILL)
            direct = as_system(topology, System.CROSS_DC)
            return in_one_datacenter(direct, [_rebuilt(engine, like, cluster) for engine in topology.engines])


def with_policy(topology: Topology, policy: PolicyTable) -> Topology:
    """Decided by ``policy``."""
    return replace(topology, router=replace(topology.router, policy=policy))


def with_line_rate(topology: Topology, bits_per_s: float) -> Topology:
    """Every line between clusters carries so much."""
    return replace(topology, links=tuple(replace(link, rate_bits_per_s=bits_per_s) for link in topology.links))


def in_one_datacenter(topology: Topology, engines: Iterable[EngineTable]) -> Topology:
    """``topology`` with these engines, which stand where its router does, as do all its nodes."""
    nodes = tuple(replace(node, cluster=topology.router.cluster) for node in topology.nodes)
    return replace(topology, nodes=nodes, engines=tuple(engines), links=())


def first_of(topology: Topology, role: Role) -> EngineTable:
    """Raises ConfigError when there is no engine of ``role``."""
    for engine in topology.engines_of(role):
        return engine
    raise ConfigError(f"topology {topology.name!r} has no {role.value} engine")


def _rebuilt(engine: EngineTable, like: EngineTable, cluster: str) -> EngineTable:
    """In ``cluster``, of ``like``'s chips."""
    if engine.hardware is None or like.hardware is None:
        return replace(engine, cluster=cluster)
    memory = engine.num_chips * load_hardware(engine.hardware).memory_bytes
    num_chips = ceil(memory / load_hardware(like.hardware).memory_bytes)
    return replace(engine, cluster=cluster, hardware=like.hardware, num_chips=num_chips)
