"""Whether a topology makes sense: names resolve, roles are there, memory holds what a request may need.

Each check raises at the first thing that is wrong, through ``refuse(path, right, value=...)``, which knows the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec

from pdd.cli.quantities import format_memory
from pdd.cli.topology.ranges import Refuse, check_ranges
from pdd.core.errors import ConfigError
from pdd.core.kv_format import abbreviate
from pdd.core.request import Role
from pdd.core.topology import LOOPBACK, EngineKind, EngineTable, NodeTable, Topology, is_loopback
from pdd.engine.catalog import ModelEntry, embedded_weights, model_of
from pdd.engine.models.sources import NoWeights
from pdd.sim.profile import ModelProfile, load_model

ROUTER_NAME = "router"
_MAX_PORT = 65535
_VLLM_KEYS = ("cache_block_tokens", "tensor_parallel", "vllm_arguments")
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(EngineTable)}


class Exposure(Enum):
    """Where nodes and engines, whose traffic is neither encrypted nor authenticated, may listen."""

    LOOPBACK = "loopback"
    INSECURE_PLAINTEXT = "insecure-plaintext"


def check_topology(topology: Topology, refuse: Refuse, exposure: Exposure) -> None:
    """Raises ConfigError at the first thing that can't work."""
    _check_shape(topology, refuse)
    _check_roles(topology, refuse, tuple(Role))
    _check_hosts(topology, refuse, exposure)
    _check_ports(topology, refuse)
    model = _check_model(topology, refuse)
    _check_kinds(topology, model, refuse)
    _check_formats(topology, model, refuse)
    _check_arenas(topology, model, refuse)
    _check_caches(topology, refuse)


def check_simulated_topology(topology: Topology, refuse: Refuse) -> None:
    """Raises ConfigError at the first thing that can't be simulated. Its hardware is whoever reads it to check.

    Nothing listens and nothing is allocated, so ports and hosts don't matter, and arenas only have to be large enough; and
    since same-datacenter deployments are simulated for comparison, relay decode may be missing.
    """
    _check_shape(topology, refuse)
    _check_roles(topology, refuse, (Role.PREFILL, Role.MAIN_DECODE))
    _check_simulated_kinds(topology, refuse)
    for index, node in enumerate(topology.nodes):
        if block_tokens_of(topology, node) != block_tokens_of(topology, topology.nodes[0]):
            raise refuse(f"nodes[{index}].block_tokens", "nodes of one deployment must agree", value=node.block_tokens)
    _check_arenas(topology, _check_profile(topology, refuse), refuse)
    _check_caches(topology, refuse)


def _check_shape(topology: Topology, refuse: Refuse) -> None:
    """What matters wherever it runs."""
    _check_names(topology, refuse)
    check_ranges(topology, refuse)
    _check_clusters(topology, refuse)
    _check_links(topology, refuse)
    _check_tenants(topology, refuse)
    _check_callers(topology, refuse)


def _check_names(topology: Topology, refuse: Refuse) -> None:
    seen: dict[str, str] = {ROUTER_NAME: "the router"}
    if not topology.name or not _is_word(topology.name):
        raise refuse("name", "it names a folder: letters, digits, '-', '_' and '.', not beginning with '.'")
    for path, name in _names(topology):
        if not _is_word(name):
            raise refuse(path, "a name is made of letters, digits, '-', '_' and '.', and does not begin with '.'")
        if name in seen:
            raise refuse(path, f"{seen[name]} has this name already; every node, engine and link needs its own")
        seen[name] = path.removesuffix(".name")


def _names(topology: Topology) -> Iterator[tuple[str, str]]:
    for kind, tables in (("nodes", topology.nodes), ("engines", topology.engines), ("links", topology.links)):
        for index, table in enumerate(tables):
            yield f"{kind}[{index}].name", table.name


def _is_word(name: str) -> bool:
    return bool(name) and name[0] != "." and all(c.isascii() and (c.isalnum() or c in "-_.") for c in name)


def _check_clusters(topology: Topology, refuse: Refuse) -> None:
    clusters = {node.cluster: None for node in topology.nodes}
    known = ", ".join(clusters) or "none"
    nodes = {node.name: node for node in topology.nodes}
    for index, engine in enumerate(topology.engines):
        node = nodes.get(engine.node)
        if node is None:
            raise refuse(f"engines[{index}].node", f"there is no such node; nodes: {', '.join(nodes) or 'none'}")
        if node.cluster != engine.cluster:
            raise refuse(
                f"engines[{index}].node",
                f"this node is in cluster {node.cluster!r}, but engine {engine.name!r} is in {engine.cluster!r}; "
                "an engine's node stands beside it",
            )
    if topology.router.cluster not in clusters:
        raise refuse("router.cluster", f"no node is in this cluster; clusters: {known}")
    for index, link in enumerate(topology.links):
        for end, cluster in enumerate(link.clusters):
            if cluster not in clusters:
                raise refuse(f"links[{index}].clusters[{end}]", f"no node is in this cluster; clusters: {known}")


def _check_roles(topology: Topology, refuse: Refuse, needed: tuple[Role, ...]) -> None:
    for role in needed:
        if not topology.engines_of(role):
            names = ", ".join(each.value for each in needed)
            raise refuse("engines", f'none has role = "{role.value}"; at least one engine is needed of each of {names}')


def _check_links(topology: Topology, refuse: Refuse) -> None:
    joined: dict[frozenset[str], str] = {}
    for index, link in enumerate(topology.links):
        pair = frozenset(link.clusters)
        if len(pair) == 1:
            raise refuse(f"links[{index}].clusters", "a link joins two different clusters", value=list(link.clusters))
        if pair in joined:
            raise refuse(
                f"links[{index}].clusters", f"link {joined[pair]!r} joins these already", value=list(link.clusters)
            )
        joined[pair] = link.name
        strangers = set(link.forwards) - {endpoint.name for endpoint in topology.endpoints()}
        if strangers:
            raise refuse(f"links[{index}].forwards.{min(strangers)}", "there is no node or engine of this name")


def _check_tenants(topology: Topology, refuse: Refuse) -> None:
    from pdd.router.api.tenants import Tenants

    try:
        Tenants(topology.router.tenants)
    except ConfigError as error:
        raise refuse("router.tenants", str(error).removeprefix("router.tenants: ")) from error


def _check_callers(topology: Topology, refuse: Refuse) -> None:
    from pdd.router.api.callers import read_host, read_origin

    router = topology.router
    for key, names, read in (
        ("origins", router.allowed_origins, read_origin),
        ("hosts", router.allowed_hosts, read_host),
    ):
        for index, name in enumerate(names):
            try:
                read(name)
            except ConfigError as error:
                raise refuse(f"router.allowed_{key}[{index}]", str(error)) from error


def _check_hosts(topology: Topology, refuse: Refuse, exposure: Exposure) -> None:
    if not is_loopback(topology.router.host) and not topology.router.tenants:
        raise refuse("router.host", "a router that isn't on loopback needs API keys: add [[router.tenants]]")
    for kind, tables in (("nodes", topology.nodes), ("engines", topology.engines)):
        for index, table in enumerate(tables):
            if not is_loopback(table.host) and exposure is Exposure.LOOPBACK:
                raise refuse(
                    f"{kind}[{index}].host",
                    "its traffic is neither encrypted nor authenticated; use 127.0.0.1, or say --insecure-plaintext",
                )


def _check_ports(topology: Topology, refuse: Refuse) -> None:
    taken: dict[tuple[str, int], str] = {}
    for path, host, port in ports(topology):
        if not 0 <= port <= _MAX_PORT:
            raise refuse(path, f"a port is from 1 to {_MAX_PORT}, or 0 for any that is free", value=port)
        if port and (host, port) in taken:
            raise refuse(path, f"{taken[host, port]} has this port already", value=port)
        taken[host, port] = path


def ports(topology: Topology) -> Iterator[tuple[str, str, int]]:
    """Every port: its key, the address that it is at, and itself."""
    yield "router.port", topology.router.host, topology.router.port
    for kind, tables in (("nodes", topology.nodes), ("engines", topology.engines)):
        for index, table in enumerate(tables):
            yield f"{kind}[{index}].port", table.host, table.port
    for index, link in enumerate(topology.links):
        yield f"links[{index}].control_port", LOOPBACK, link.control_port
        for name, port in link.forwards.items():
            yield f"links[{index}].forwards.{name}", LOOPBACK, port


def _check_model(topology: Topology, refuse: Refuse) -> ModelEntry:
    try:
        model = model_of(topology)
    except ConfigError as error:
        raise refuse("model", str(error), value=topology.model) from error
    if topology.max_model_tokens > model.max_model_tokens:
        raise refuse(
            "max_model_tokens",
            f"model {model.name!r} takes at most {model.max_model_tokens} tokens",
            value=topology.max_model_tokens,
        )
    return model


def _check_profile(topology: Topology, refuse: Refuse) -> ModelProfile:
    try:
        return load_model(topology.model)
    except ConfigError as error:
        raise refuse("model", str(error), value=topology.model) from error


def _check_kinds(topology: Topology, model: ModelEntry, refuse: Refuse) -> None:
    first = topology.engines[0]
    for index, engine in enumerate(topology.engines):
        path = f"engines[{index}].kind"
        if engine.kind is EngineKind.MODELLED:
            raise refuse(path, "modelled engines only compute time: `pdd sim run` takes them", value=engine.kind.value)
        if engine.hardware is not None:
            raise refuse(f"engines[{index}].hardware", "only modelled engines have a hardware profile")
        if engine.kind is EngineKind.EMBEDDED:
            _check_embedded(model, path, refuse)
        elif engine.kind is EngineKind.VLLM and isinstance(model.weights, NoWeights):
            raise refuse(
                path, f'model {model.name!r} has no weights; it needs kind = "scripted"', value=engine.kind.value
            )
        if (engine.kind is EngineKind.SCRIPTED) is not (first.kind is EngineKind.SCRIPTED):
            raise refuse(
                path,
                f"engine {first.name!r} is {first.kind.value}; a script's KV means nothing to an engine with a model",
                value=engine.kind.value,
            )
        if engine.kind is not EngineKind.VLLM:
            _check_no_vllm_keys(f"engines[{index}]", engine, refuse)


def _check_no_vllm_keys(path: str, engine: EngineTable, refuse: Refuse) -> None:
    """Whoever sets one of them believes that vLLM runs."""
    for key in _VLLM_KEYS:
        if getattr(engine, key) != _DEFAULTS[key]:
            raise refuse(f"{path}.{key}", f"only vllm engines have this; {engine.name!r} is {engine.kind.value}")


def _check_embedded(model: ModelEntry, path: str, refuse: Refuse) -> None:
    try:
        embedded_weights(model)
    except ConfigError as error:
        raise refuse(path, str(error), value=EngineKind.EMBEDDED.value) from error


def _check_simulated_kinds(topology: Topology, refuse: Refuse) -> None:
    for index, engine in enumerate(topology.engines):
        if engine.kind is not EngineKind.MODELLED:
            raise refuse(f"engines[{index}].kind", 'a simulated engine has kind = "modelled"', value=engine.kind.value)
        if engine.hardware is None:
            raise refuse(f"engines[{index}].hardware", "a modelled engine needs a hardware profile, by name or path")


def block_tokens_of(topology: Topology, node: NodeTable) -> int:
    """The block length of a node and its engines, in tokens."""
    return topology.block_tokens if node.block_tokens is None else node.block_tokens


def _check_formats(topology: Topology, model: ModelEntry, refuse: Refuse) -> None:
    first = topology.nodes[0]
    expected = model.kv_format(block_tokens_of(topology, first))
    for index, node in enumerate(topology.nodes):
        found = model.kv_format(block_tokens_of(topology, node))
        if found.fingerprint != expected.fingerprint:
            raise refuse(
                f"nodes[{index}].block_tokens",
                f"its KV format is {abbreviate(found.description)!r}, but node {first.name!r} has "
                f"{abbreviate(expected.description)!r}; nodes of one deployment must agree",
                value=block_tokens_of(topology, node),
            )


def _check_arenas(topology: Topology, model: ModelEntry | ModelProfile, refuse: Refuse) -> None:
    for index, node in enumerate(topology.nodes):
        kv_format = model.kv_format(block_tokens_of(topology, node))
        num_blocks = -(-topology.max_model_tokens // kv_format.block_tokens)
        needed = num_blocks * kv_format.block_bytes
        if node.arena_bytes < needed:
            raise refuse(
                f"nodes[{index}].arena_bytes",
                f"one request of max_model_tokens = {topology.max_model_tokens} needs {needed} bytes "
                f"({format_memory(needed)}) of this model's KV",
                value=node.arena_bytes,
            )


def _check_caches(topology: Topology, refuse: Refuse) -> None:
    for index, engine in enumerate(topology.engines):
        if engine.cache_tokens < topology.max_model_tokens:
            raise refuse(
                f"engines[{index}].cache_tokens",
                f"one request may have max_model_tokens = {topology.max_model_tokens} tokens; the cache must hold them",
                value=engine.cache_tokens,
            )
