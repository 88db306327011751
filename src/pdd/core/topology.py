"""Which roles run where, and what joins them: one deployment as plain data.

Read from a TOML file by ``pdd.cli.topology.file``, which also checks it (names resolve, ports are free, an arena holds a
request). Unknown keys are refused. A *resolved* topology has no port 0 left and, for every link, one forwarding port per
endpoint that is reached across it; that is what roles are started with.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from ipaddress import ip_address

import msgspec

from pdd.core.errors import ConfigError
from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Role
from pdd.core.units import BitsPerSecond, Bytes, Seconds

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``. Any name but ``localhost`` counts as reachable from elsewhere."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Address(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class EngineKind(StrEnum):
    """Which engine serves a role."""

    EMBEDDED = "embedded"
    """The torch engine of this package, on the CPU, with a real small model."""
    SCRIPTED = "scripted"
    """A deterministic fake: the next token is a pure function of all tokens before it."""


class NodeTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One KV node. ``arena_bytes`` of memory are allocated and touched when it starts, never more."""

    name: NodeId
    cluster: str
    host: str = LOOPBACK
    port: int = 0
    arena_bytes: Bytes = Bytes(512 * 1024 * 1024)
    block_tokens: int | None = None
    """Defaults to the topology's; nodes of one deployment must agree."""


class EngineTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine. ``node`` is its local KV node (same machine); ``cache_tokens`` sizes its own paged cache."""

    name: WorkerId
    role: Role
    cluster: str
    node: NodeId
    kind: EngineKind = EngineKind.EMBEDDED
    host: str = LOOPBACK
    port: int = 0
    cache_tokens: int = 8192
    max_batch: int = 16
    prefill_chunk_tokens: int = 128
    token_interval_s: Seconds = Seconds(0.02)
    """Scripted engines only: how long one decoded token takes."""
    prefill_tokens_per_s: float = 2000.0
    """Scripted engines only: how fast known tokens are computed."""


class LinkTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One emulated line between two clusters, the same in both directions, each with its own full ``rate``."""

    name: str
    clusters: tuple[str, str]
    rate_bits_per_s: BitsPerSecond
    delay_s: Seconds = Seconds(0.0)
    """One way; the round trip is twice this."""
    jitter_s: Seconds = Seconds(0.0)
    control_port: int = 0
    forwards: dict[str, int] = {}
    """Filled in on resolving: endpoint name -> port on which the emulator accepts traffic for it."""


class TenantTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant and the API key that names it."""

    name: str
    api_key: str


class PolicyTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the policies; ``docs/policies.md`` says what each does."""

    relay_threshold_s: Seconds = Seconds(2.0)
    """A request relays when main decode's predicted wait after prefill exceeds this."""
    catch_up_threshold_tokens: int = 64
    """A hand-off of more eager tokens than this goes in batches."""
    max_catch_up_rounds: int = 3
    reroute_interval_s: Seconds = Seconds(0.25)
    """How often a waiting P-MD request is asked again whether it should relay."""


class RouterTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The front door."""

    cluster: str
    host: str = LOOPBACK
    port: int = 8000
    tenants: tuple[TenantTable, ...] = ()
    max_answer_memory_tokens: int = 1_000_000
    """How many answer token IDs are kept per tenant for splicing into the next turn."""
    max_open_requests: int = 256
    policy: PolicyTable = PolicyTable()


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One deployment: clusters are just the names that roles and links refer to."""

    name: str
    model: str
    nodes: tuple[NodeTable, ...]
    engines: tuple[EngineTable, ...]
    router: RouterTable
    links: tuple[LinkTable, ...] = ()
    block_tokens: int = 16
    max_model_tokens: int = 4096
    """Prompt and output together; what a request may ask for."""

    def node(self, name: str) -> NodeTable:
        for node in self.nodes:
            if node.name == name:
                return node
        raise ConfigError(f"topology {self.name!r} has no node named {name!r}; nodes: {_names(self.nodes)}")

    def engine(self, name: str) -> EngineTable:
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise ConfigError(f"topology {self.name!r} has no engine named {name!r}; engines: {_names(self.engines)}")

    def link(self, name: str) -> LinkTable:
        for link in self.links:
            if link.name == name:
                return link
        raise ConfigError(f"topology {self.name!r} has no link named {name!r}; links: {_names(self.links)}")

    def engines_of(self, role: Role) -> tuple[EngineTable, ...]:
        return tuple(engine for engine in self.engines if engine.role is role)

    def link_between(self, cluster: str, other: str) -> LinkTable | None:
        """The emulated line between two clusters, if they are joined by one."""
        for link in self.links:
            if set(link.clusters) == {cluster, other}:
                return link
        return None

    def endpoints(self) -> Iterator[NodeTable | EngineTable]:
        yield from self.nodes
        yield from self.engines

    def address_of(self, endpoint: NodeTable | EngineTable, *, seen_from: str) -> Address:
        """Where to connect to ``endpoint`` from cluster ``seen_from``: through the emulator where a link lies between."""
        link = None if endpoint.cluster == seen_from else self.link_between(endpoint.cluster, seen_from)
        if link is None:
            return Address(host=endpoint.host, port=endpoint.port)
        return Address(host=LOOPBACK, port=link.forwards[endpoint.name])


def _names(tables: tuple[NodeTable, ...] | tuple[EngineTable, ...] | tuple[LinkTable, ...]) -> str:
    return ", ".join(table.name for table in tables) or "none"
