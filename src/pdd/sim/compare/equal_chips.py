"""The systems that recorded traffic is played on: the same number of chips in each.

Whoever does without relay decode has its chips for something else. Across the line they prefill: relay decode stands in
prefill's datacenter. In one datacenter every chip is of prefill's type, since that is what can be had there, and relay
decode's join main decode.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from pdd.core.errors import ConfigError
from pdd.core.request import Role
from pdd.core.topology import EngineTable, Topology
from pdd.sim.compare.systems import System, as_system, first_of, in_one_datacenter
from pdd.sim.profile import HardwareProfile, ModelProfile, load_hardware, load_model


def with_equal_chips(topology: Topology, system: System) -> Topology:
    """``topology`` turned into ``system``, of as many chips.

    Raises:
        ConfigError: an engine has no hardware or would not hold the model, or a role is missing.
    """
    match system:
        case System.PDD:
            return topology
        case System.CROSS_DC:
            prefill = first_of(topology, Role.PREFILL)
            engines = tuple(_prefilling(engine, prefill) for engine in topology.engines)
            return _pruned(replace(as_system(topology, System.CROSS_DC), engines=engines))
        case System.SAME_DC:
            direct = as_system(topology, System.CROSS_DC)
            return _pruned(in_one_datacenter(direct, _on_prefills_chips(topology)))


def relay_bandwidth_share(topology: Topology) -> float:
    """Relay decode's part of the memory bandwidth that decodes, and so of the decoding that can be done."""
    bandwidth = {
        role: sum(map(_bandwidth, topology.engines_of(role))) for role in (Role.RELAY_DECODE, Role.MAIN_DECODE)
    }
    return bandwidth[Role.RELAY_DECODE] / sum(bandwidth.values())


def _hardware(engine: EngineTable) -> HardwareProfile:
    if engine.hardware is None:
        raise ConfigError(f"engine {engine.name!r}: a simulation needs hardware")
    return load_hardware(engine.hardware)


def _bandwidth(engine: EngineTable) -> float:
    return engine.num_chips * _hardware(engine).memory_bytes_per_s


def _prefilling(engine: EngineTable, prefill: EngineTable) -> EngineTable:
    """Relay decode as one more prefill engine, at the same node as the others."""
    if engine.role is not Role.RELAY_DECODE:
        return engine
    return replace(
        engine,
        role=Role.PREFILL,
        cluster=prefill.cluster,
        node=prefill.node,
        max_batch=prefill.max_batch,
        prefill_chunk_tokens=prefill.prefill_chunk_tokens,
    )


def _on_prefills_chips(topology: Topology) -> Iterator[EngineTable]:
    """Prefill as it is, and main decode with relay decode's chips, all where the router is."""
    prefill, cluster = first_of(topology, Role.PREFILL), topology.router.cluster
    decoders = topology.engines_of(Role.MAIN_DECODE)
    share, rest = divmod(sum(each.num_chips for each in topology.engines_of(Role.RELAY_DECODE)), len(decoders))
    yield from (replace(engine, cluster=cluster) for engine in topology.engines_of(Role.PREFILL))
    for number, engine in enumerate(decoders):
        num_chips = engine.num_chips + share + (number < rest)
        like = replace(engine, cluster=cluster, hardware=prefill.hardware, num_chips=num_chips)
        yield replace(like, cache_tokens=_cache_tokens(engine, like, load_model(topology.model)))


def _cache_tokens(engine: EngineTable, like: EngineTable, model: ModelProfile) -> int:
    """As much of the memory beside the weights as ``engine`` gives its cache."""
    before, after = _memory_beside(engine, model), _memory_beside(like, model)
    if after <= 0:
        raise ConfigError(f"engine {engine.name!r}: {like.num_chips} x {like.hardware} don't hold {model.name}")
    return max(1, int(engine.cache_tokens * after / before))


def _memory_beside(engine: EngineTable, model: ModelProfile) -> float:
    weights = model.dense_weight_bytes + model.expert_weight_bytes
    return engine.num_chips * _hardware(engine).memory_bytes - weights


def _pruned(topology: Topology) -> Topology:
    """Without nodes that nobody uses."""
    used = {engine.node for engine in topology.engines}
    return replace(topology, nodes=tuple(node for node in topology.nodes if node.name in used))
