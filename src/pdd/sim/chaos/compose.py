"""Draws a scene from a seed: a small deployment, a few conversations, and the weather over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from pdd.core.ids import NodeId, TenantId, TokenId, WorkerId
from pdd.core.kv_format import DType, KvFormat, uniform_attention_format
from pdd.core.request import HandoffMode, Role, Route, Steering
from pdd.core.topology import (
    AdmissionTable,
    EngineKind,
    EngineTable,
    FilterRule,
    HandoffRule,
    LinkTable,
    NodeTable,
    PlacementRule,
    PolicyTable,
    RouterTable,
    TenantTable,
    Topology,
)
from pdd.core.units import BITS_PER_BYTE, BitsPerSecond, Bytes, Seconds
from pdd.engine.scripted.engine import Garbage, Script
from pdd.sim.chaos.scene import AtCommand, AtTime, Fault, FaultKind, Scene, Talk, Trigger, Turn, Weather

VOCAB_SIZE = 1000
STOP_TOKENS = frozenset(range(0, VOCAB_SIZE, 40))
HOME = "A"
"""The cluster of prefill, relay decode and the router."""

_TENANTS = (TenantId("one"), TenantId("two"))
_LARGE_ARENA = 4096
_SMALL_ARENA = 56
"""Blocks. More than the longest conversation has, so that no single request is too long for it."""
_ROOM = 600
"""Tokens; no conversation becomes longer."""
_SHOWERS = Seconds(40.0)
"""How long one-at-a-time faults may take altogether."""
_FREEZES_WITH_IT = 0.2
"""How often everything stands still in the very moment in which something else breaks."""
_LULL = Seconds(9.0)
"""From one fault's end to the next one's beginning, where there is one at a time."""


def kv_format() -> KvFormat:
    """256 bytes a block: bytes are checked one by one, so a few are enough."""
    return uniform_attention_format(
        model="scripted", num_layers=1, num_kv_heads=1, head_dim=2, dtype=DType.FLOAT32, block_tokens=16
    )


def compose(seed: int) -> Scene:
    """The scene of ``seed``: always the same one."""
    chance = Random(seed)  # noqa: S311 - not a secret
    weather = chance.choices(tuple(Weather), weights=(1, 4, 4, 2))[0]
    arena = chance.choice((_LARGE_ARENA, _LARGE_ARENA, _SMALL_ARENA))
    crowded = chance.random() < 0.2
    topology = _topology(chance, arena=arena, crowded=crowded)
    scripts = {table.name: _script(chance, table.role) for table in topology.engines}
    talks = tuple(_talk(chance) for _ in range(chance.randint(10, 16)))
    return Scene(
        seed=seed,
        weather=weather,
        topology=topology,
        scripts=scripts,
        talks=_at_their_times(chance, weather, talks),
        faults=tuple(_faults(chance, weather, topology)),
        is_tight=arena == _SMALL_ARENA or crowded,
        max_spans_ahead=chance.choice((2, 256)),
    )


# What is deployed ----------------------------------------------------------------------------------------------------


def _topology(chance: Random, *, arena: int, crowded: bool) -> Topology:
    abroad = chance.choice((("B",), ("B",), ("B", "C")))
    engines = tuple(_engines(chance, abroad))
    block_bytes = kv_format().block_bytes
    return Topology(
        name="chaos",
        model="scripted",
        nodes=tuple(_nodes(engines, Bytes(arena * block_bytes))),
        engines=engines,
        router=RouterTable(
            cluster=HOME,
            tenants=tuple(TenantTable(name=str(name), api_key=f"key of {name}") for name in _TENANTS),
            max_open_requests=4 if crowded else 256,
            policy=_policy(chance),
            admission=AdmissionTable(
                max_queued_requests=4 if crowded else 256, max_queue_s=Seconds(3.0 if crowded else 30.0)
            ),
        ),
        links=tuple(_link(chance, cluster, block_bytes) for cluster in abroad),
    )


def _engines(chance: Random, abroad: Sequence[str]) -> Iterator[EngineTable]:
    """Engines of one role share a node, or each has its own; prefill and relay decode may share one, too."""
    own = chance.random() < 0.5
    shared_home = not own and chance.random() < 0.3
    for role, letter in ((Role.PREFILL, "p"), (Role.RELAY_DECODE, "r"), (Role.MAIN_DECODE, "m")):
        for index in range(chance.choice((1, 1, 2, 2, 3))):
            cluster = abroad[index % len(abroad)] if role is Role.MAIN_DECODE else HOME
            place = f"{letter}{index}" if own else f"{letter}-{cluster}"
            if shared_home and role is not Role.MAIN_DECODE:
                place = "home"
            yield EngineTable(
                name=WorkerId(f"{letter}{index}"),
                role=role,
                cluster=cluster,
                node=NodeId(f"node-{place}"),
                kind=EngineKind.SCRIPTED,
                cache_tokens=chance.choice((0, 512, 8192)),
                max_batch=8,
            )


def _nodes(engines: Sequence[EngineTable], arena_bytes: Bytes) -> Iterator[NodeTable]:
    clusters = {engine.node: engine.cluster for engine in engines}
    for name, cluster in clusters.items():
        yield NodeTable(name=name, cluster=cluster, arena_bytes=arena_bytes)


def _link(chance: Random, cluster: str, block_bytes: Bytes) -> LinkTable:
    blocks_per_s = chance.choice((2.0, 5.0, 20.0, 1000.0))
    return LinkTable(
        name=f"wan-{cluster}",
        clusters=(HOME, cluster),
        rate_bits_per_s=BitsPerSecond(blocks_per_s * block_bytes * BITS_PER_BYTE),
        delay_s=Seconds(chance.choice((0.0, 0.015, 0.1))),
    )


def _policy(chance: Random) -> PolicyTable:
    return PolicyTable(
        relay_threshold_s=Seconds(chance.choice((0.05, 0.5, 2.0))),
        catch_up_threshold_tokens=chance.choice((2, 8, 64)),
        handoff=chance.choice(tuple(HandoffRule)),
        one_shot_load=chance.choice((0.25, 0.75)),
        filter=chance.choice(tuple(FilterRule)),
        filter_max_share=chance.choice((0.04, 0.5)),
        placement=chance.choice(tuple(PlacementRule)),
        conversation_ttl_s=Seconds(chance.choice((3.0, 12.0))),
    )


def _script(chance: Random, role: Role) -> Script:
    interval = {Role.PREFILL: 0.03, Role.RELAY_DECODE: 0.031, Role.MAIN_DECODE: chance.choice((0.017, 0.04))}[role]
    return Script(
        prefill_tokens_per_s=chance.choice((400.0, 2000.0, 10000.0)),
        prefill_chunk_tokens=chance.choice((32, 128)),
        token_interval=Seconds(interval),
        burst_tokens=chance.choice((1, 3, 8)),
        vocab_size=VOCAB_SIZE,
        max_running=8,
    )


# Who asks ------------------------------------------------------------------------------------------------------------


def _talk(chance: Random) -> Talk:
    shared = _text(chance.choice((1, 2)), 48) if chance.random() < 0.4 else ()
    turns = [_turn(chance, shared + _own_text(chance, (1, 15, 16, 17, 40, 100, 200)))]
    room = _ROOM - len(turns[0].text) - turns[0].max_tokens
    for _ in range(chance.choice((0, 1, 2, 3))):
        turn = _turn(chance, _own_text(chance, (1, 5, 20, 64)))
        room -= len(turn.text) + turn.max_tokens
        if room < 0:
            break
        turns.append(turn)
    return Talk(tenant=chance.choice(_TENANTS), turns=tuple(turns))


def _turn(chance: Random, text: tuple[TokenId, ...]) -> Turn:
    return Turn(
        think=Seconds(chance.choice((0.0, 0.2, 1.0, 4.0))),
        text=text,
        max_tokens=chance.choice((1, 2, 10, 30, 60, 120)),
        steering=_steering(chance) if chance.random() < 0.5 else Steering(),
        seed=chance.choice((None, chance.randrange(1000))),
        has_stop_tokens=chance.random() < 0.3,
        read_interval=Seconds(0.3 if chance.random() < 0.15 else 0.0),
        leave_after=Seconds(chance.uniform(0.0, 4.0)) if chance.random() < 0.12 else None,
        complete_after=chance.choice((1, 2, 9)) if chance.random() < 0.1 else None,
    )


def _steering(chance: Random) -> Steering:
    return Steering(
        route=chance.choice((None, Route.DIRECT, Route.RELAY, Route.RELAY, Route.RELAY)),
        handoff=chance.choice((None, *HandoffMode)),
        handoff_after_tokens=chance.choice((None, None, 1, 5, 16, 17, 100)),
    )


def _own_text(chance: Random, lengths: Sequence[int]) -> tuple[TokenId, ...]:
    return tuple(chance.randrange(VOCAB_SIZE) for _ in range(chance.choice(lengths)))


def _text(number: int, length: int) -> tuple[TokenId, ...]:
    """What several conversations begin with."""
    return tuple((7919 * number + 31 * index + index * index) % VOCAB_SIZE for index in range(length))


def _at_their_times(chance: Random, weather: Weather, talks: Sequence[Talk]) -> tuple[Talk, ...]:
    """When each conversation begins. Where things break one after the other, people come all the time."""
    end = _SHOWERS if weather is Weather.SQUALLS else Seconds(8.0)
    return tuple(_delayed(talk, Seconds(chance.uniform(0.0, end))) for talk in talks)


def _delayed(talk: Talk, by: Seconds) -> Talk:
    first = replace(talk.turns[0], think=by)
    return replace(talk, turns=(first, *talk.turns[1:]))


# What breaks ---------------------------------------------------------------------------------------------------------

_COMMANDS: tuple[tuple[str, Role | None], ...] = (
    ("Replicate", Role.MAIN_DECODE),
    ("Replicate", Role.RELAY_DECODE),
    ("StartDecode", Role.PREFILL),
    ("StartDecode", Role.RELAY_DECODE),
    ("StartDecode", Role.MAIN_DECODE),
    ("StartExtend", None),
    ("AskRoute", None),
    ("AskHandoff", None),
    ("CancelReplication", None),
    ("Emit", Role.RELAY_DECODE),
    ("Emit", Role.MAIN_DECODE),
    ("SetTimer", None),
)

_ENGINE_FAULTS = tuple(kind for kind in FaultKind if kind.value.startswith("engine"))
_NODE_FAULTS = tuple(kind for kind in FaultKind if kind.value.startswith("node"))
_FREEZES = (FaultKind.HOST_FREEZE, FaultKind.WORLD_FREEZE)
_LAN_FAULTS = tuple(kind for kind in FaultKind if kind.value.startswith("lan"))
_WAN_FAULTS = tuple(kind for kind in FaultKind if kind.value.startswith("wan"))


def _faults(chance: Random, weather: Weather, topology: Topology) -> Iterator[Fault]:
    match weather:
        case Weather.CALM:
            return
        case Weather.SQUALLS:
            yield from _squalls(chance, topology)
        case Weather.STORM | Weather.RUIN:
            for _ in range(chance.randint(3, 8)):
                lasts = weather is Weather.RUIN and chance.random() < 0.4
                duration = None if lasts else Seconds(chance.choice((0.01, 0.3, 2.0, 8.0, 20.0)))
                fault = _fault(chance, topology, _trigger(chance), duration)
                yield fault
                if chance.random() < _FREEZES_WITH_IT:
                    yield _freeze(chance, topology, fault.trigger, FaultKind.WORLD_FREEZE)


def _squalls(chance: Random, topology: Topology) -> Iterator[Fault]:
    at = Seconds(chance.uniform(0.0, 3.0))
    while at < _SHOWERS:
        fault = _fault(chance, topology, AtTime(at=at), Seconds(chance.choice((0.01, 0.5, 3.0, 8.0))))
        yield fault
        assert fault.duration is not None
        at = Seconds(at + fault.duration + _LULL + chance.uniform(0.0, 2.0))


def _trigger(chance: Random) -> Trigger:
    if chance.random() < 0.4:
        return AtTime(at=Seconds(chance.uniform(0.0, 10.0)))
    command, role = chance.choice(_COMMANDS)
    delay = Seconds(chance.choice((0.0, 0.0, 0.001, 0.02, 0.3)))
    return AtCommand(command=command, role=role, nth=chance.choice((1, 2, 3, 5, 9, 14)), delay=delay)


def _fault(chance: Random, topology: Topology, trigger: Trigger, duration: Seconds | None) -> Fault:
    groups = (_ENGINE_FAULTS, _NODE_FAULTS, _FREEZES, _LAN_FAULTS, _WAN_FAULTS)
    kind = chance.choice(chance.choices(groups, (6, 3, 1, 1, 3))[0])
    if kind in _FREEZES:
        return _freeze(chance, topology, trigger, kind)
    if kind in _ENGINE_FAULTS:
        target: tuple[str, ...] = (chance.choice(topology.engines).name,)
    elif kind in _NODE_FAULTS:
        target = (chance.choice(topology.nodes).name,)
    elif kind in _WAN_FAULTS:
        target = (chance.choice(topology.links).name,)
    else:
        at_home = [node.name for node in topology.nodes if node.cluster == HOME]
        target = (chance.choice(at_home), chance.choice(at_home))
    return Fault(
        kind=kind,
        target=target,
        trigger=trigger,
        duration=duration,
        factor=chance.choice((3.0, 10.0)),
        garbage=chance.choice(tuple(Garbage)),
        after_tokens=chance.choice((0, 1, 3, 10)),
    )


def _freeze(chance: Random, topology: Topology, trigger: Trigger, kind: FaultKind) -> Fault:
    """Of any length: what ends by the clock elsewhere ends in the midst of it, and much of it in one instant
    afterwards.
    """
    target = "world" if kind is FaultKind.WORLD_FREEZE else chance.choice(topology.nodes).name
    return Fault(kind=kind, target=(target,), trigger=trigger, duration=Seconds(chance.uniform(3.0, 25.0)))
