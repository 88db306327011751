"""A node as a process of its own: how it starts, refuses to start, is killed and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdd.core.errors import ConfigError, NodeFailed
from pdd.core.ids import NodeId, WorkerId
from pdd.core.topology import Address
from pdd.core.units import Bytes, Seconds
from pdd.kvnode.client import TcpNodeClient
from pdd.kvnode.local import LocalNode
from pdd.kvnode.server import run_node
from tests.support.kv_nodes import (
    FAST_CLIENT,
    chain,
    kv_format,
    last_progress,
    order,
    read_blocks,
    running_cluster,
    write_blocks,
)

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(60)]

FORM = kv_format(num_layers=8, head_dim=256)
ARENA_BLOCKS = 64
ARENA_BYTES = Bytes(ARENA_BLOCKS * FORM.block_bytes)

NODE = """
import asyncio, sys
from pathlib import Path
from pdd.core.topology import Address
from pdd.kvnode.server import run_node
from tests.support.kv_nodes import kv_format
name, port, socket_path, arena_bytes, peer, peer_port = sys.argv[1:]
asyncio.run(run_node(
    node=name, kv_format=kv_format(num_layers=8, head_dim=256), arena_bytes=int(arena_bytes),
    listen=Address(host="127.0.0.1", port=int(port)), local_socket=Path(socket_path),
    peers={peer: Address(host="127.0.0.1", port=int(peer_port))}, on_ready=lambda: print("ready", flush=True),
))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.asynccontextmanager
async def node_process(folder: Path, name: str, ports: dict[str, int]) -> AsyncIterator[asyncio.subprocess.Process]:
    """One of two nodes that may send to each other."""
    (peer,) = set(ports) - {name}
    arguments = [name, str(ports[name]), str(folder / f"{name}.sock"), str(ARENA_BYTES), peer, str(ports[peer])]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", NODE, *arguments, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def client_of(name: str, ports: dict[str, int]) -> TcpNodeClient:
    address = Address(host="127.0.0.1", port=ports[name])
    return TcpNodeClient(node=NodeId(name), address=address, kv_format=FORM, settings=FAST_CLIENT)


def engine_at(folder: Path, name: str) -> LocalNode:
    return LocalNode.connect(folder / f"{name}.sock", FORM, owner=WorkerId("engine"), timeout=Seconds(10))


def shared_memory_of(process: asyncio.subprocess.Process) -> int:
    """Bytes of shared memory that the process has in use."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssShmem"))
    return int(line.split()[1]) * 1024


async def test_a_killed_target_comes_back_and_gets_everything_again(tmp_path: Path):
    ports = {"a": free_port(), "b": free_port()}
    blocks = chain(40, form=FORM)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(node_process(tmp_path, "a", ports))
        source = await stack.enter_async_context(client_of("a", ports))
        target = await stack.enter_async_context(client_of("b", ports))
        with contextlib.closing(engine_at(tmp_path, "a")) as engine:
            async with node_process(tmp_path, "b", ports) as victim:
                write_blocks(engine, blocks[:20], FORM)
                progress = source.replicate(order("o", "b", blocks))
                while (await anext(progress)).num_acknowledged < 20:
                    pass
                victim.kill()
                await victim.wait()
            assert (tmp_path / "b.sock").exists(), "a killed node can't clean up"
            write_blocks(engine, blocks[20:], FORM)
        await stack.enter_async_context(node_process(tmp_path, "b", ports))
        last = await last_progress(progress)
        assert (last.num_missing, last.num_acknowledged) == (40, 40)
        with contextlib.closing(engine_at(tmp_path, "b")) as engine:
            assert read_blocks(engine, blocks, FORM) == 40
        assert (await target.stats()).received_bytes == {"a": 40 * FORM.block_bytes}


async def test_an_arena_is_there_from_the_start_and_never_grows(tmp_path: Path):
    ports = {"a": free_port(), "b": free_port()}
    async with node_process(tmp_path, "a", ports) as process, client_of("a", ports) as client:
        before = shared_memory_of(process)
        assert ARENA_BYTES <= before < ARENA_BYTES + 8 * 1024 * 1024
        with contextlib.closing(engine_at(tmp_path, "a")) as engine:
            for n in range(5):
                write_blocks(engine, chain(ARENA_BLOCKS, salt=str(n), form=FORM), FORM)
        stats = await client.stats()
        assert (stats.held_blocks, stats.evictions) == (ARENA_BLOCKS, 4 * ARENA_BLOCKS)
        assert shared_memory_of(process) == before


async def started(folder: Path, *, port: int, arena_bytes: int = ARENA_BYTES, socket_path: Path | None = None) -> None:
    """Starts a node in this loop and stops it when it is ready."""
    async with asyncio.TaskGroup() as tasks:
        ready = asyncio.Event()
        node = tasks.create_task(
            run_node(
                node=NodeId("x"),
                kv_format=FORM,
                arena_bytes=Bytes(arena_bytes),
                listen=Address(host="127.0.0.1", port=port),
                local_socket=socket_path or folder / "x.sock",
                peers={},
                on_ready=ready.set,
            )
        )
        await ready.wait()
        assert (folder / "x.sock").is_socket()
        node.cancel()


async def test_a_node_that_is_stopped_removes_its_socket(tmp_path: Path):
    await started(tmp_path, port=0)
    assert not (tmp_path / "x.sock").exists()


async def test_an_arena_smaller_than_one_block_is_refused(tmp_path: Path):
    with pytest.raises(ExceptionGroup) as group:
        await started(tmp_path, port=0, arena_bytes=FORM.block_bytes - 1)
    (error,) = group.value.exceptions
    assert isinstance(error, ConfigError)
    assert f"one is {FORM.block_bytes} bytes" in str(error)
    assert not (tmp_path / "x.sock").exists()


async def test_an_arena_larger_than_the_machine_is_refused(tmp_path: Path):
    with pytest.raises(ExceptionGroup) as group:
        await started(tmp_path, port=0, arena_bytes=1 << 50)
    assert isinstance(group.value.exceptions[0], ConfigError)


async def test_a_port_in_use_is_refused_by_name(tmp_path: Path):
    async with running_cluster(tmp_path, "a", form=FORM) as nodes:
        with pytest.raises(ExceptionGroup) as group:
            await started(tmp_path, port=nodes["a"].address.port)
    (error,) = group.value.exceptions
    assert isinstance(error, ConfigError)
    assert str(nodes["a"].address.port) in str(error)


async def test_a_socket_in_use_is_refused_and_left_alone(tmp_path: Path):
    async with running_cluster(tmp_path, "a", form=FORM) as nodes:
        with pytest.raises(ExceptionGroup) as group:
            await started(tmp_path, port=0, socket_path=nodes["a"].socket_path)
        assert isinstance(group.value.exceptions[0], ConfigError)
        assert await nodes["a"].write(chain(1, form=FORM)) == 1


async def test_a_socket_path_too_long_for_the_kernel_is_refused(tmp_path: Path):
    with pytest.raises(ExceptionGroup) as group:
        await started(tmp_path, port=0, socket_path=tmp_path / ("x" * 200))
    assert isinstance(group.value.exceptions[0], ConfigError)


async def test_running_calls_fail_when_the_node_is_killed(tmp_path: Path):
    ports = {"a": free_port(), "b": free_port()}
    async with node_process(tmp_path, "a", ports) as process, client_of("a", ports) as client:
        progress = client.replicate(order("o", "b", chain(1, form=FORM)))
        await anext(progress)
        process.kill()
        with pytest.raises(NodeFailed, match="'a' is lost"):
            await anext(progress)
