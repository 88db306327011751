"""One scene as plain data: what is deployed, who asks what when, and what breaks at which moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pdd.core.ids import NodeId, TenantId, TokenId, WorkerId
from pdd.core.request import Role, Steering
from pdd.core.topology import Topology
from pdd.core.units import Seconds
from pdd.engine.scripted.engine import Garbage, Script


class Weather(StrEnum):
    """How much breaks in a scene."""

    CALM = "calm"
    """Nothing."""
    SQUALLS = "squalls"
    """One thing at a time, whole again before the next one breaks."""
    STORM = "storm"
    """Several things at once; all of them become whole again."""
    RUIN = "ruin"
    """The same, and some never do."""


class FaultKind(StrEnum):
    """What can go wrong. All but ``ENGINE_BREAK`` and ``NODE_BREAK`` last until the fault ends."""

    ENGINE_KILL = "engine_kill"
    """kill -9; at its end another process takes its place."""
    ENGINE_HANG = "engine_hang"
    """SIGSTOP: connections stand, nothing comes."""
    ENGINE_SLOW = "engine_slow"
    ENGINE_BREAK = "engine_break"
    """The router's connections to it break off; it can be reached again at once."""
    ENGINE_UNREACHABLE = "engine_unreachable"
    """The router's connections to it break off; new ones are refused."""
    ENGINE_FULL = "engine_full"
    ENGINE_GARBAGE = "engine_garbage"
    ENGINE_DIES_AT = "engine_dies_at"
    """Each generation breaks off after so many tokens."""
    ENGINE_HANGS_AT = "engine_hangs_at"
    """Each generation falls silent after so many tokens, while the engine answers its health checks."""
    NODE_KILL = "node_kill"
    NODE_HANG = "node_hang"
    NODE_SLOW = "node_slow"
    NODE_BREAK = "node_break"
    """The router's connection to it breaks off; it can be reached again at once."""
    HOST_FREEZE = "host_freeze"
    """A node and the engines on its machine stand still: connections stand, nothing comes."""
    WORLD_FREEZE = "world_freeze"
    """Everything stands still, as where all runs on one machine: whatever was due meanwhile is due at once
    afterwards.
    """
    LAN_CUT = "lan_cut"
    LAN_STALL = "lan_stall"
    LAN_SLOW = "lan_slow"
    WAN_CUT = "wan_cut"
    """Between two clusters nothing passes: neither blocks nor the router's connections, which break off."""
    WAN_STALL = "wan_stall"
    """Between two clusters nothing passes, but connections stand and what was under way comes later."""
    WAN_SLOW = "wan_slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTime:
    """So many seconds after the beginning."""

    at: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class AtCommand:
    """``delay`` after the router gave the ``nth`` command of this kind (and for this role, if one is named)."""

    command: str
    role: Role | None
    nth: int
    delay: Seconds


Trigger = AtTime | AtCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``target`` is a worker's, node's or link's name (of a LAN: two nodes'). ``duration`` None: it stays broken."""

    kind: FaultKind
    target: tuple[str, ...]
    trigger: Trigger
    duration: Seconds | None
    factor: float = 1.0
    """How many times slower."""
    garbage: Garbage | None = None
    after_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a conversation: ``text`` is what it adds to all that was said before.

    The client leaves after ``leave_after`` seconds, or says "complete" after so many tokens; it takes ``read_interval``
    to read a span.
    """

    think: Seconds
    text: tuple[TokenId, ...]
    max_tokens: int
    steering: Steering = Steering()
    seed: int | None = None
    has_stop_tokens: bool = False
    read_interval: Seconds = Seconds(0.0)
    leave_after: Seconds | None = None
    complete_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation: each turn is asked after the one before has ended."""

    tenant: TenantId
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything about one world.

    ``is_tight``: there may be less room than is asked for, so requests may be refused.
    """

    seed: int
    weather: Weather
    topology: Topology
    scripts: Mapping[WorkerId, Script]
    talks: tuple[Talk, ...]
    faults: tuple[Fault, ...]
    is_tight: bool
    max_spans_ahead: int

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(table.name for table in self.topology.nodes)
