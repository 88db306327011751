"""Scripted engines beside real KV nodes: what one writes, another loads, also after the blocks crossed a line."""

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pdd.core.blocks import block_hashes
from pdd.core.errors import RemoteProtocolError
from pdd.core.ids import NodeId, OrderId, Salt, WorkerId
from pdd.core.replication import ReplicationOrder
from pdd.core.request import GREEDY
from pdd.core.topology import LOOPBACK, Address
from pdd.core.units import Bytes, Seconds
from pdd.engine.scripted.engine import Script, ScriptedEngine, scripted_answer
from pdd.kvnode.client import TcpNodeClient
from pdd.kvnode.local import LocalNode
from pdd.kvnode.server import serve_node
from pdd.transport.tcp import listen_tcp, listen_unix
from tests.unit.engine.scripted_support import FORMAT, collect, generation, tokens_of

pytestmark = pytest.mark.anyio
PROMPT = tuple(range(100, 421))
HASHES = block_hashes(FORMAT, Salt(""), PROMPT)
SLOW = Script(prefill_tokens_per_s=2000.0, token_interval=Seconds(0.0))
A, B = NodeId("a"), NodeId("b")


@dataclass(frozen=True)
class Nodes:
    """Two nodes that run in a thread, since an engine calls its node synchronously."""

    sockets: dict[NodeId, Path]
    addresses: dict[NodeId, Address]

    def connect(self, node: NodeId, owner: str) -> LocalNode:
        return LocalNode.connect(self.sockets[node], FORMAT, owner=WorkerId(owner), timeout=Seconds(5.0))

    def engine(self, name: str, node: NodeId) -> ScriptedEngine:
        return ScriptedEngine(
            WorkerId(name), kv_format=FORMAT, script=SLOW, connect_store=lambda: self.connect(node, name)
        )


@contextmanager
def running_nodes(folder: Path) -> Generator[Nodes]:
    tcp = {node: listen_tcp(Address(host=LOOPBACK, port=0)) for node in (A, B)}
    local = {node: listen_unix(folder / node) for node in (A, B)}
    addresses = {node: Address(host=LOOPBACK, port=sock.getsockname()[1]) for node, sock in tcp.items()}
    ready = threading.Semaphore(0)
    stop = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with asyncio.TaskGroup() as tasks:
            served = [
                tasks.create_task(
                    serve_node(
                        node=node,
                        kv_format=FORMAT,
                        arena_bytes=Bytes(512 * FORMAT.block_bytes),
                        tcp=tcp[node],
                        local=local[node],
                        peers=addresses,
                        on_ready=ready.release,
                    )
                )
                for node in (A, B)
            ]
            await stop.wait()
            for task in served:
                task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        for _ in (A, B):
            assert ready.acquire(timeout=10)
        yield Nodes({node: folder / node for node in (A, B)}, addresses)
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(10)
        for sock in (*tcp.values(), *local.values()):
            sock.close()


async def test_blocks_that_crossed_the_line_while_prefill_ran_serve_main_decode(tmp_path: Path):
    with running_nodes(tmp_path) as nodes:
        prefill, main = nodes.engine("p", A), nodes.engine("md", B)
        order = ReplicationOrder(order=OrderId("o"), target=B, hashes=HASHES)
        async with (
            TcpNodeClient(node=A, address=nodes.addresses[A], kv_format=FORMAT) as source,
            asyncio.TaskGroup() as tasks,
        ):
            first = tasks.create_task(collect(prefill, generation(PROMPT, max_tokens=1)))
            async with asyncio.timeout(20):
                async for progress in source.replicate(order):
                    if progress.done:
                        break
        assert progress.num_acknowledged == len(HASHES)
        head = tokens_of(first.result())
        # Computing the prompt again would take this engine half a minute.
        main.script = replace(SLOW, prefill_tokens_per_s=10.0)
        async with asyncio.timeout(15):
            rest = tokens_of(
                await collect(main, generation((*PROMPT, *head), num_prompt_tokens=len(PROMPT), max_tokens=30))
            )
        assert head + rest == scripted_answer(PROMPT, 31, GREEDY)
        checker = nodes.connect(B, "checker")
        # Its output's blocks are in its node too: 321 + 30 tokens have KV, 87 blocks.
        assert len(checker.lease(block_hashes(FORMAT, Salt(""), (*PROMPT, *head, *rest))).slots) == 87
        checker.close()
        prefill.close()
        main.close()


async def test_a_block_that_was_damaged_in_the_node_is_caught_on_loading(tmp_path: Path):
    with running_nodes(tmp_path) as nodes:
        vandal = nodes.connect(A, "vandal")
        writes = vandal.begin_write(HASHES[:3])
        vandal.commit(writes)
        vandal.close()
        engine = nodes.engine("p", A)
        with pytest.raises(RemoteProtocolError, match="does not hold the bytes"):
            await collect(engine, generation(PROMPT, max_tokens=1))
        engine.close()
