"""One KV node, composed. What its blocks are it is told by the topology: no model and no engine is imported here."""

from __future__ import annotations

from pdd.cli.roles.context import RoleContext
from pdd.cli.topology.wiring import require_kv_format
from pdd.core.topology import Address
from pdd.kvnode.server import run_node


async def main(context: RoleContext) -> None:
    """Runs the node named ``context.name``."""
    topology = context.topology
    node = topology.node(context.name)
    context.run.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    await run_node(
        node=node.name,
        kv_format=require_kv_format(topology, context.source.refuse),
        arena_bytes=node.arena_bytes,
        listen=Address(host=node.host, port=node.port),
        local_socket=context.run.node_socket(node.name),
        peers={
            peer.name: topology.address_of(peer, seen_from=node.cluster)
            for peer in topology.nodes
            if peer.name != node.name
        },
        on_ready=context.on_ready,
    )
