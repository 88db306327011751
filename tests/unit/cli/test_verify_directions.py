from __future__ import annotations

import msgspec
import pytest

from pdd.cli.topology.file import load_topology
from pdd.cli.verify.directions import directions_of, exchanged
from pdd.core.errors import ConfigError
from pdd.core.request import Role
from pdd.core.topology import EngineKind, EngineTable, Topology

EMBEDDED, VLLM = EngineKind.EMBEDDED, EngineKind.VLLM


def topology(*kinds: EngineKind) -> Topology:
    """P, RLD and MD of these kinds."""
    tiny = load_topology("tiny")
    engines = [msgspec.structs.replace(engine, kind=kind) for engine, kind in zip(tiny.engines, kinds, strict=True)]
    return msgspec.structs.replace(tiny, engines=tuple(_as_configured(engine) for engine in engines))


def _as_configured(engine: EngineTable) -> EngineTable:
    if engine.kind is not VLLM:
        return engine
    return msgspec.structs.replace(engine, cache_block_tokens=32, tensor_parallel=2, vllm_arguments=("--swap", "1"))


def kinds_of(topology: Topology) -> tuple[EngineKind, ...]:
    return tuple(engine.kind for engine in topology.engines)


@pytest.mark.parametrize("kind", [EMBEDDED, VLLM, EngineKind.SCRIPTED])
def test_engines_of_one_kind_are_tried_once_and_strictly(kind: EngineKind):
    alike = topology(kind, kind, kind)
    (direction,) = directions_of(alike)
    assert (direction.name, direction.mixed, direction.topology) == (kind, False, alike)


def test_two_kinds_are_tried_both_ways_round():
    there, back = directions_of(topology(EMBEDDED, EMBEDDED, VLLM))
    assert (there.name, kinds_of(there.topology)) == ("embedded_to_vllm", (EMBEDDED, EMBEDDED, VLLM))
    assert (back.name, kinds_of(back.topology)) == ("vllm_to_embedded", (VLLM, VLLM, EMBEDDED))
    assert there.mixed
    assert back.mixed


def test_who_becomes_vllm_is_set_up_as_the_vllm_engine_was_and_who_becomes_embedded_not_at_all():
    back = exchanged(topology(EMBEDDED, EMBEDDED, VLLM))
    settings = [(each.cache_block_tokens, each.tensor_parallel, each.vllm_arguments) for each in back.engines]
    assert settings == [(32, 2, ("--swap", "1")), (32, 2, ("--swap", "1")), (None, 1, ())]


def test_only_a_main_decode_that_is_vllm_is_asked_for_all_scores():
    there, back = directions_of(topology(EMBEDDED, EMBEDDED, VLLM))
    (main,) = there.topology.engines_of(Role.MAIN_DECODE)
    assert main.vllm_arguments == ("--swap", "1", "--max-logprobs", "-1")
    assert all("--max-logprobs" not in engine.vllm_arguments for engine in back.topology.engines)


def test_exchanging_twice_changes_nothing():
    mixed = topology(EMBEDDED, EMBEDDED, VLLM)
    assert exchanged(exchanged(mixed)) == mixed


def test_engines_without_scores_cannot_be_compared():
    with pytest.raises(ConfigError, match="embedded, scripted can't be compared"):
        directions_of(topology(EMBEDDED, EMBEDDED, EngineKind.SCRIPTED))
