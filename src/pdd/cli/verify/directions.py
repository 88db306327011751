"""Which deployments one run of ``pdd verify`` tries: one where all engines are of a kind, else two."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from pdd.core.errors import ConfigError
from pdd.core.request import Role
from pdd.core.topology import EngineKind, EngineTable, Topology

_OTHER_KIND = {EngineKind.EMBEDDED: EngineKind.VLLM, EngineKind.VLLM: EngineKind.EMBEDDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """One deployment. Engines of different kinds (``mixed``) agree up to near ties only."""

    name: str
    topology: Topology
    mixed: bool


def directions_of(topology: Topology) -> tuple[Direction, ...]:
    """The deployment itself; where it mixes kinds of engines also the one in which each engine is the other kind.

    Raises:
        ConfigError: it mixes others than PDD's own engine and vLLM.
    """
    kinds = {engine.kind for engine in topology.engines}
    if len(kinds) == 1:
        return (Direction(name=_name_of(topology), topology=topology, mixed=False),)
    if not kinds <= _OTHER_KIND.keys():
        raise ConfigError(f"{topology.name}: engines of kinds {', '.join(sorted(kinds))} can't be compared")
    both = (_measurable(topology), _measurable(exchanged(topology)))
    return tuple(Direction(name=_name_of(each), topology=each, mixed=True) for each in both)


def exchanged(topology: Topology) -> Topology:
    """Each engine as the other kind; who becomes vLLM takes over the settings of the one that was."""
    pattern = next(engine for engine in topology.engines if engine.kind is EngineKind.VLLM)
    engines = tuple(_as_other_kind(engine, pattern) for engine in topology.engines)
    return msgspec.structs.replace(topology, engines=engines)


def _as_other_kind(engine: EngineTable, pattern: EngineTable) -> EngineTable:
    becomes_vllm = engine.kind is EngineKind.EMBEDDED
    return msgspec.structs.replace(
        engine,
        kind=_OTHER_KIND[engine.kind],
        cache_block_tokens=pattern.cache_block_tokens if becomes_vllm else None,
        tensor_parallel=pattern.tensor_parallel if becomes_vllm else 1,
        vllm_arguments=pattern.vllm_arguments if becomes_vllm else (),
    )


def _measurable(topology: Topology) -> Topology:
    """Main decode, where it is vLLM, tells the scores of the whole vocabulary when asked."""
    return msgspec.structs.replace(topology, engines=tuple(_with_all_scores(engine) for engine in topology.engines))


def _with_all_scores(engine: EngineTable) -> EngineTable:
    if engine.kind is not EngineKind.VLLM or engine.role is not Role.MAIN_DECODE:
        return engine
    return msgspec.structs.replace(engine, vllm_arguments=(*engine.vllm_arguments, "--max-logprobs", "-1"))


def _name_of(topology: Topology) -> str:
    """Such as ``embedded_to_vllm``; just the kind where there is only one."""
    first = topology.engines_of(Role.PREFILL)[0].kind
    last = topology.engines_of(Role.MAIN_DECODE)[0].kind
    return first if first is last else f"{first}_to_{last}"
