"""Which roles run where, and what joins them: one deployment as plain data.

Read from a TOML file by ``pdd.cli.topology.file``, which also checks it (names resolve, ports are free, an arena holds
a request). Unknown keys are refused. A *resolved* topology has no port 0 left, for every link one forwarding port per
endpoint that is reached across it, and the KV format of its model; that is what roles are started with.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from ipaddress import ip_address
from itertools import groupby

import msgspec

from pdd.core.errors import ConfigError
from pdd.core.ids import NodeId, WorkerId
from pdd.core.kv_format import DType, KvFormat, TensorSpec
from pdd.core.request import Role
from pdd.core.units import BitsPerSecond, Bytes, BytesPerSecond, Seconds

LOOPBACK = "127.0.0.1"
LOCAL_RATE = BytesPerSecond(1.25e9)
"""Between nodes of one cluster, where no line is declared: 10 Gbit/s."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``. Any name but ``localhost`` counts as reachable from elsewhere."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_model_path(name: str) -> bool:
    """Whether a model's name is the path of its folder."""
    return "/" in name


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
    VLLM = "vllm"
    """A vLLM instance with PDD's connector (``plugins.vllm``)."""
    MODELLED = "modelled"
    """Only its time is computed, from a hardware profile and a model profile: for the simulator, never live."""


class RouteRule(StrEnum):
    """What decides whether a request relays. All but the first are rivals for comparison."""

    MISSING_BYTES = "missing_bytes"
    """Main decode's predicted wait for the bytes that it lacks, against the price of relay decode's room."""
    HIT_RATE = "hit_rate"
    """Prefill's prefix hit rate is below ``relay_hit_rate``."""
    DIRECT = "direct"
    """Nobody relays: cross-datacenter prefill/decode disaggregation without hiding."""
    RELAY_ONLY = "relay_only"
    """Whoever would relay is served in cluster A to its end. It collapses; shown, not recommended."""


class HandoffRule(StrEnum):
    """What decides how relay decode hands over."""

    BY_LOAD = "by_load"
    ONE_SHOT = "one_shot"
    CATCH_UP = "catch_up"


class FilterRule(StrEnum):
    """What happens to singular traffic: very long input, very short output."""

    OFF = "off"
    BACKGROUND = "background"
    """Its transfer goes on while the line is idle, and is cut when something displaces it."""
    CUT = "cut"
    """Its transfer is cut at once."""


class PlacementRule(StrEnum):
    """What decides which worker of a role gets a request."""

    PREFIX = "prefix"
    """The longest prefix at its node, against its load; conversations stay where they are."""
    LEAST_LOADED = "least_loaded"


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
    cache_block_tokens: int | None = None
    """vLLM only: tokens per block of its own cache, which may differ from the wire's; its own choice by default."""
    tensor_parallel: int = 1
    """vLLM only: how many devices share each layer."""
    vllm_arguments: tuple[str, ...] = ()
    """vLLM only: further arguments of ``vllm serve``, after ours."""
    hardware: str | None = None
    """Modelled engines only: a hardware profile, by name or path."""
    num_chips: int = 1
    """Modelled engines only: chips that work as one, by tensor and expert parallelism."""


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
    weight: float = 1.0
    """Its share of a busy system, relative to the other tenants that wait."""


class PolicyTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the policies; ``docs/policies.md`` says what each does."""

    relay_threshold_s: Seconds = Seconds(0.5)
    """A request relays when main decode's predicted wait after prefill exceeds this."""
    catch_up_threshold_tokens: int = 64
    """A hand-off of more eager tokens than this goes in batches."""
    max_catch_up_rounds: int = 3
    reroute_interval_s: Seconds = Seconds(0.25)
    """How often a waiting P-MD request is asked again whether it should relay."""
    route: RouteRule = RouteRule.MISSING_BYTES
    relay_hit_rate: float = 0.9
    """``route = "hit_rate"`` only."""
    handoff: HandoffRule = HandoffRule.BY_LOAD
    one_shot_load: float = 0.75
    """Above this share of relay decode's room in use, hand-offs are one-shot: it is released soonest."""
    filter: FilterRule = FilterRule.OFF
    """Off: that it is worth anything could not be shown. ``docs/policies.md`` says when to try it."""
    filter_max_share: float = 0.04
    """No more than this share of all requests is filtered."""
    placement: PlacementRule = PlacementRule.PREFIX
    conversation_ttl_s: Seconds = Seconds(600.0)
    """How long after its last turn a conversation counts as alive: it keeps its place and its pins."""


class HealthTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a worker counts as down, and as up again."""

    interval_s: Seconds = Seconds(1.0)
    timeout_s: Seconds = Seconds(2.0)
    checks_to_down: int = 2
    """So many failed checks in a row; a connection that is refused counts as all of them."""
    checks_to_up: int = 1
    breaker_failures: int = 3
    """So many generations that broke off within ``breaker_window_s`` open the worker's circuit breaker."""
    breaker_window_s: Seconds = Seconds(30.0)
    breaker_open_s: Seconds = Seconds(5.0)
    """How long it stays open at first; doubled each time that its trial fails, up to twelve times this."""


class AdmissionTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many requests run, how many wait, and for how long."""

    max_queued_requests: int = 256
    """Requests that wait for a place behind ``max_open_requests``; more are refused."""
    max_queue_s: Seconds = Seconds(30.0)
    """A request that waited for so long is refused."""


class SlaTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What users were promised; only requests within all of it count as goodput."""

    ttft_s: Seconds = Seconds(10.0)
    ttst_s: Seconds = Seconds(15.0)
    tpot_s: Seconds = Seconds(0.1)
    """Mean time per output token after the second."""


class RouterTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The front door."""

    cluster: str
    host: str = LOOPBACK
    port: int = 8000
    tenants: tuple[TenantTable, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    """Web pages of these origins may call."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, besides those of loopback, under which a router without keys is called."""
    keep_alive_s: Seconds = Seconds(15.0)
    """A stream that has had nothing to say for so long sends a comment, and its headers if they are not out."""
    max_answer_memory_tokens: int = 1_000_000
    """How many answer token IDs are kept per tenant for splicing into the next turn."""
    max_open_requests: int = 256
    """Requests that are served at the same time; more wait, as ``admission`` says."""
    trace_file: str | None = None
    """Where the event trace goes, if anywhere."""
    policy: PolicyTable = PolicyTable()
    health: HealthTable = HealthTable()
    admission: AdmissionTable = AdmissionTable()
    sla: SlaTable = SlaTable()


class TensorTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tensor that a layer caches; ``shape`` is per token."""

    name: str
    shape: tuple[int, ...]
    dtype: DType


class LayersTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many layers, one after the other, that cache the same tensors."""

    count: int = 1
    tensors: tuple[TensorTable, ...]


class KvFormatTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A KV format as a file holds it, so that a KV node needs no model to know its blocks."""

    model: str
    """The weights' own name, revision included; not what clients call the model."""
    block_tokens: int
    layers: tuple[LayersTable, ...]

    @classmethod
    def of(cls, kv_format: KvFormat) -> KvFormatTable:
        """The table whose ``kv_format`` this is."""
        return cls(
            model=kv_format.model,
            block_tokens=kv_format.block_tokens,
            layers=tuple(
                LayersTable(
                    count=len(list(alike)),
                    tensors=tuple(TensorTable(name=t.name, shape=t.shape, dtype=t.dtype) for t in tensors),
                )
                for tensors, alike in groupby(kv_format.layers)
            ),
        )

    @property
    def kv_format(self) -> KvFormat:
        """Raises ConfigError: a block has no tokens, or a token no layers."""
        return KvFormat(
            model=self.model,
            block_tokens=self.block_tokens,
            layers=tuple(
                tuple(TensorSpec(name=t.name, shape=t.shape, dtype=t.dtype) for t in table.tensors)
                for table in self.layers
                for _ in range(table.count)
            ),
        )


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One deployment: clusters are just the names that roles and links refer to."""

    name: str
    model: str
    """A name of the catalog, or the path of a Hugging Face folder: then it has a ``/`` in it."""
    nodes: tuple[NodeTable, ...]
    engines: tuple[EngineTable, ...]
    router: RouterTable
    links: tuple[LinkTable, ...] = ()
    block_tokens: int = 16
    max_model_tokens: int = 4096
    """Prompt and output together; what a request may ask for."""
    model_name: str | None = None
    """What clients call the model: by default its name in the catalog, or its folder's."""
    kv_dtype: DType | None = None
    """What K and V are kept and sent in: by default what the model says."""
    kv_format: KvFormatTable | None = None
    """Filled in on resolving, from the model; a file that has one must say the same."""

    @property
    def served_model_name(self) -> str:
        """What clients call the model."""
        return self.model_name or self.model.rstrip("/").rpartition("/")[2]

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
        """Where to connect to ``endpoint`` from cluster ``seen_from``: through the emulator where a link
        lies between.
        """
        link = None if endpoint.cluster == seen_from else self.link_between(endpoint.cluster, seen_from)
        if link is None:
            return Address(host=endpoint.host, port=endpoint.port)
        return Address(host=LOOPBACK, port=link.forwards[endpoint.name])


def _names(tables: tuple[NodeTable, ...] | tuple[EngineTable, ...] | tuple[LinkTable, ...]) -> str:
    return ", ".join(table.name for table in tables) or "none"
