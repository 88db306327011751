"""How fast one node replicates to another over loopback, beside a plain copy of the same bytes in the same run."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Generator
from time import perf_counter

import msgspec

from benchmarks.processes import Roles, running_roles, wait_for_file
from benchmarks.report import Result, row
from pdd.cli.deploy.launch import unshaped
from pdd.cli.deploy.state import RoleKind
from pdd.cli.topology.file import load_topology
from pdd.core.blocks import BlockHash, block_hashes
from pdd.core.ids import NodeId, OrderId, Salt, TokenId, WorkerId
from pdd.core.kv_format import KvFormat
from pdd.core.replication import ReplicationOrder
from pdd.core.topology import Address, NodeTable, Topology
from pdd.core.units import Bytes, Seconds
from pdd.engine.catalog import model_of
from pdd.kvnode.client import TcpNodeClient
from pdd.kvnode.local import LocalNode

_TARGET_BYTES = 1_000_000_000
_SOURCE, _TARGET = NodeId("node-p"), NodeId("node-md")
_BATCH_BLOCKS = 64


def run(repetitions: int) -> Result:
    """Each repetition: a gigabyte of new blocks from node to node, then as many bytes from socket to socket."""
    topology = _topology()
    kv_format = model_of(topology).kv_format(topology.block_tokens)
    num_blocks = _TARGET_BYTES // kv_format.block_bytes
    num_bytes = num_blocks * kv_format.block_bytes
    nodes: list[float] = []
    plain: list[float] = []
    with (
        running_roles(topology, (RoleKind.NODE, _SOURCE), (RoleKind.NODE, _TARGET)) as roles,
        _plain_copy(num_bytes) as copy,
    ):
        for name in (_SOURCE, _TARGET):
            wait_for_file(roles.run.node_socket(name))
        for number in range(repetitions):
            hashes = block_hashes(kv_format, Salt(f"run {number}"), _tokens(num_blocks * kv_format.block_tokens))
            _fill(roles, kv_format, hashes)
            nodes.append(asyncio.run(_replicate(roles, kv_format, hashes)))
            plain.append(_time_copy(copy))
    return Result(
        name="replication",
        title=f"{num_blocks} blocks of {kv_format.block_bytes / 1e3:.0f} KB ({num_bytes / 1e9:.2f} GB) over loopback",
        rows=(
            row("node to node, digests checked", "GB/s", [num_bytes / 1e9 / s for s in nodes]),
            row("plain sendall to recv_into", "GB/s", [num_bytes / 1e9 / s for s in plain]),
            row("node over plain", "ratio", [b / a for a, b in zip(nodes, plain, strict=True)]),
        ),
    )


def _topology() -> Topology:
    topology = unshaped(load_topology("default"))

    def enlarged(node: NodeTable) -> NodeTable:
        # Room for more than one repetition: evictions must not be what is measured.
        size = Bytes(_TARGET_BYTES * 5 // 4) if node.name in (_SOURCE, _TARGET) else node.arena_bytes
        return msgspec.structs.replace(node, arena_bytes=size)

    return msgspec.structs.replace(topology, nodes=tuple(enlarged(node) for node in topology.nodes))


def _tokens(count: int) -> tuple[TokenId, ...]:
    return tuple(range(count))


def _fill(roles: Roles, kv_format: KvFormat, hashes: tuple[BlockHash, ...]) -> None:
    """As a local engine would: through the mapped arena."""
    payload = bytes(range(256)) * (kv_format.block_bytes // 256 + 1)
    store = LocalNode.connect(
        roles.run.node_socket(_SOURCE), kv_format, owner=WorkerId("benchmark"), timeout=Seconds(60.0)
    )
    with contextlib.closing(store):
        for start in range(0, len(hashes), _BATCH_BLOCKS):
            slots = store.begin_write(hashes[start : start + _BATCH_BLOCKS])
            for slot in slots:
                store.view(slot.slot)[:] = payload[: kv_format.block_bytes]
            store.commit(slots)


async def _replicate(roles: Roles, kv_format: KvFormat, hashes: tuple[BlockHash, ...]) -> float:
    """Seconds from the order to the last block's confirmation."""
    node = roles.topology.node(_SOURCE)
    address = Address(host=node.host, port=node.port)
    async with TcpNodeClient(node=_SOURCE, address=address, kv_format=kv_format) as client:
        await client.stats()
        began = perf_counter()
        order = ReplicationOrder(order=OrderId(f"benchmark {began}"), target=_TARGET, hashes=hashes)
        async for progress in client.replicate(order):
            if progress.done:
                assert progress.num_acknowledged == len(hashes)
        return perf_counter() - began


@contextlib.contextmanager
def _plain_copy(num_bytes: int) -> Generator[subprocess.Popen[str]]:
    """The sending process of a pair; each line written to it makes it send."""
    command = [sys.executable, "-m", "benchmarks.plain_copy"]
    with subprocess.Popen([*command, "receive", str(num_bytes)], stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        arguments = [*command, "send", port, str(num_bytes)]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sender:
            yield sender


def _time_copy(sender: subprocess.Popen[str]) -> float:
    assert sender.stdin is not None
    assert sender.stdout is not None
    sender.stdin.write("go\n")
    sender.stdin.flush()
    return float(sender.stdout.readline())
