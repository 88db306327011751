"""What any role can check of a topology, without its model: names, clusters, links, hosts, ports, memory.

Imports no engine and no model: a KV node checks what it is started from with nothing else. Each check raises at the
first thing that is wrong, through ``refuse(path, right, value=...)``, which knows the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from pdd.cli.quantities import format_memory
from pdd.cli.topology.ranges import Refuse, check_ranges
from pdd.core.kv_format import KvFormat
from pdd.core.request import Role
from pdd.core.topology import LOOPBACK, NodeTable, Topology, is_loopback

ROUTER_NAME = "router"
_MAX_PORT = 65535


class Exposure(Enum):
    """Where nodes and engines, whose traffic is neither encrypted nor authenticated, may listen."""

    LOOPBACK = "loopback"
    INSECURE_PLAINTEXT = "insecure-plaintext"


def check_node_topology(topology: Topology, refuse: Refuse, exposure: Exposure) -> None:
    """Raises ConfigError at the first thing that a KV node can't be started from; its model is for others to check."""
    check_shape(topology, refuse)
    check_roles(topology, refuse, tuple(Role))
    check_addresses(topology, refuse, exposure)
    kv_format = require_kv_format(topology, refuse)
    for index, node in enumerate(topology.nodes):
        if block_tokens_of(topology, node) != kv_format.block_tokens:
            raise refuse(
                "kv_format.block_tokens",
                f"node {node.name!r} has block_tokens = {block_tokens_of(topology, node)}; all must be the same",
                value=kv_format.block_tokens,
            )
        check_arena(topology, index, kv_format, refuse)


def require_kv_format(topology: Topology, refuse: Refuse) -> KvFormat:
    """What a KV node keeps: it has no model to look it up in.

    Raises:
        ConfigError: the topology doesn't carry it.
    """
    if topology.kv_format is None:
        raise refuse(
            "kv_format",
            "this key is missing: a KV node reads from it what its blocks are; `pdd topology resolve` writes a file "
            "that has it",
        )
    return topology.kv_format.kv_format


def check_shape(topology: Topology, refuse: Refuse) -> None:
    """What matters wherever it runs."""
    _check_names(topology, refuse)
    check_ranges(topology, refuse)
    _check_clusters(topology, refuse)
    _check_links(topology, refuse)


def check_addresses(topology: Topology, refuse: Refuse, exposure: Exposure) -> None:
    """Where roles listen."""
    _check_hosts(topology, refuse, exposure)
    _check_ports(topology, refuse)


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


def check_roles(topology: Topology, refuse: Refuse, needed: tuple[Role, ...]) -> None:
    """At least one engine of each role that is needed."""
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


def block_tokens_of(topology: Topology, node: NodeTable) -> int:
    """The block length of a node and its engines, in tokens."""
    return topology.block_tokens if node.block_tokens is None else node.block_tokens


def check_arena(topology: Topology, index: int, kv_format: KvFormat, refuse: Refuse) -> None:
    """The node with this index holds one request of any length."""
    num_blocks = -(-topology.max_model_tokens // kv_format.block_tokens)
    needed = num_blocks * kv_format.block_bytes
    if topology.nodes[index].arena_bytes < needed:
        raise refuse(
            f"nodes[{index}].arena_bytes",
            f"one request of max_model_tokens = {topology.max_model_tokens} needs {needed} bytes "
            f"({format_memory(needed)}) of this model's KV",
            value=topology.nodes[index].arena_bytes,
        )
