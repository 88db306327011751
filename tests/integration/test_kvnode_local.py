"""The engine's door, with a real node behind it: leases, writes and what becomes of them when an engine dies."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from pdd.core.errors import Incompatible, LocalProtocolError, NodeFailed
from pdd.core.ids import WorkerId
from pdd.core.kv_format import abbreviate
from pdd.core.units import Seconds
from pdd.kvnode.local import LocalNode
from tests.support.kv_nodes import (
    RunningNode,
    chain,
    kv_format,
    last_progress,
    order,
    payload_of,
    running_cluster,
    until_idle,
    write_blocks,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

FORM = kv_format()


async def in_thread(node: RunningNode, work) -> object:
    """Runs ``work(engine)`` with a connected engine in a thread, as engines do."""

    def connected() -> object:
        with contextlib.closing(node.engine()) as engine:
            return work(engine)

    return await asyncio.to_thread(connected)


async def test_an_engine_reads_what_another_one_wrote(tmp_path: Path):
    blocks = chain(5)
    async with running_cluster(tmp_path, "a") as nodes:
        assert await nodes["a"].write(blocks[:3]) == 3
        assert await nodes["a"].write(blocks) == 2
        assert await nodes["a"].read(blocks) == 5
        assert await nodes["a"].read(chain(5, salt="other tenant")) == 0


async def test_blocks_being_written_are_neither_leased_nor_written_twice(tmp_path: Path):
    blocks = chain(2)

    def work(engine: LocalNode) -> None:
        slots = engine.begin_write(blocks)
        assert [slot.hash for slot in slots] == list(blocks)
        assert engine.begin_write(blocks) == ()
        assert engine.lease(blocks).slots == ()
        engine.abort(slots)
        assert len(engine.begin_write(blocks)) == 2

    async with running_cluster(tmp_path, "a") as nodes:
        await in_thread(nodes["a"], work)
        assert (await until_idle(nodes["a"].client)).held_blocks == 0


async def test_several_leases_may_be_open_and_each_is_released_once(tmp_path: Path):
    blocks = chain(4)

    def work(engine: LocalNode) -> None:
        first, second = engine.lease(blocks), engine.lease(blocks[:2])
        assert first.slots[:2] == second.slots
        engine.release(first)
        engine.release(second)
        with pytest.raises(LocalProtocolError):
            engine.release(first)
        assert engine.lease(blocks).slots == first.slots

    async with running_cluster(tmp_path, "a") as nodes:
        await nodes["a"].write(blocks)
        await in_thread(nodes["a"], work)
        await until_idle(nodes["a"].client)


async def test_leased_blocks_survive_a_flood_of_writes(tmp_path: Path):
    blocks = chain(2)

    def work(engine: LocalNode) -> None:
        lease = engine.lease(blocks)
        for n in range(5):
            write_blocks(engine, chain(4, salt=str(n)), FORM)
        for block, slot in zip(blocks, lease.slots, strict=True):
            assert bytes(engine.view(slot)) == payload_of(block, FORM.block_bytes)
        engine.release(lease)

    async with running_cluster(tmp_path, "a", capacity=4) as nodes:
        await nodes["a"].write(blocks)
        await in_thread(nodes["a"], work)


async def test_a_full_node_gives_fewer_slots(tmp_path: Path):
    def work(engine: LocalNode) -> None:
        assert len(engine.begin_write(chain(6))) == 4
        assert engine.begin_write(chain(1, salt="x")) == ()

    async with running_cluster(tmp_path, "a", capacity=4) as nodes:
        await in_thread(nodes["a"], work)


async def test_views_lie_within_the_arena(tmp_path: Path):
    def work(engine: LocalNode) -> None:
        assert engine.capacity_blocks == 4
        assert engine.view(3).nbytes == FORM.block_bytes
        for slot in (-1, 4):
            with pytest.raises(IndexError):
                engine.view(slot)

    async with running_cluster(tmp_path, "a", capacity=4) as nodes:
        await in_thread(nodes["a"], work)


async def test_the_same_memory_is_seen_by_all(tmp_path: Path):
    (block,) = chain(1)

    def work(engine: LocalNode) -> None:
        with contextlib.closing(nodes["a"].engine("second")) as second:
            (slot,) = engine.begin_write([block])
            engine.view(slot.slot)[:5] = b"hello"
            assert bytes(second.view(slot.slot)[:5]) == b"hello"

    async with running_cluster(tmp_path, "a") as nodes:
        await in_thread(nodes["a"], work)


async def test_an_engine_of_another_format_is_refused_with_both_descriptions(tmp_path: Path):
    other = kv_format(model="another-model")
    async with running_cluster(tmp_path, "a") as nodes:
        with pytest.raises(Incompatible) as refusal:
            await asyncio.to_thread(
                LocalNode.connect, nodes["a"].socket_path, other, owner=WorkerId("e"), timeout=Seconds(5)
            )
        assert abbreviate(other.description) in str(refusal.value)
        assert abbreviate(FORM.description) in str(refusal.value)
        assert await nodes["a"].write(chain(1)) == 1


async def test_without_a_node_connecting_fails(tmp_path: Path):
    with pytest.raises(NodeFailed, match="does not answer"):
        LocalNode.connect(tmp_path / "nobody.sock", FORM, owner=WorkerId("e"), timeout=Seconds(1))


async def test_when_the_node_dies_the_connection_is_dead_and_a_new_one_finds_a_new_instance(tmp_path: Path):
    blocks = chain(2)
    async with running_cluster(tmp_path, "a") as nodes:
        engine = await asyncio.to_thread(nodes["a"].engine)
        await asyncio.to_thread(write_blocks, engine, blocks, FORM)
        await nodes["a"].stop()
        for _ in range(2):
            with pytest.raises(NodeFailed):
                await asyncio.to_thread(engine.lease, blocks)
        engine.close()
        await nodes["a"].restart()
        fresh = await asyncio.to_thread(nodes["a"].engine)
        assert fresh.instance != engine.instance
        assert (await asyncio.to_thread(fresh.lease, blocks)).slots == ()
        fresh.close()


async def test_a_connection_is_alive_between_calls_until_the_node_dies_and_that_shows_without_a_call(tmp_path: Path):
    async with running_cluster(tmp_path, "a") as nodes:
        engine = await asyncio.to_thread(nodes["a"].engine)
        assert engine.is_alive()
        await asyncio.to_thread(write_blocks, engine, chain(2), FORM)
        assert engine.is_alive()
        await nodes["a"].stop()
        assert not engine.is_alive()
        await nodes["a"].restart()
        assert not engine.is_alive()
        engine.close()


async def test_a_connection_that_was_closed_here_is_not_alive(tmp_path: Path):
    async with running_cluster(tmp_path, "a") as nodes:
        engine = await asyncio.to_thread(nodes["a"].engine)
        engine.close()
        assert not engine.is_alive()


async def test_stale_slots_are_ignored_after_a_reconnect(tmp_path: Path):
    (block,) = chain(1)
    async with running_cluster(tmp_path, "a") as nodes:
        first = await asyncio.to_thread(nodes["a"].engine)
        stale = await asyncio.to_thread(first.begin_write, [block])
        first.close()

        def work(engine: LocalNode) -> None:
            engine.commit(stale)
            assert engine.lease([block]).slots == ()

        await in_thread(nodes["a"], work)


DYING_ENGINE = """
import sys
from pathlib import Path
from pdd.core.ids import WorkerId
from pdd.kvnode.local import LocalNode
from tests.support.kv_nodes import chain, kv_format
engine = LocalNode.connect(Path(sys.argv[1]), kv_format(), owner=WorkerId("dying"), timeout=5.0)
lease = engine.lease(chain(3))
writes = engine.begin_write(chain(6))
print(len(lease.slots), len(writes), flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
async def test_an_engine_that_is_killed_leaves_no_lease_and_no_half_written_block(tmp_path: Path):
    blocks = chain(6)
    async with running_cluster(tmp_path, "a", "b") as nodes:
        await nodes["a"].write(blocks[:3])
        command = [sys.executable, "-c", DYING_ENGINE, str(nodes["a"].socket_path)]
        engine = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert engine.stdout is not None
        assert await engine.stdout.readline() == b"3 3\n"
        stats = await nodes["a"].client.stats()
        assert (stats.leased_blocks, stats.writing_blocks) == (3, 3)
        engine.kill()
        await engine.wait()
        stats = await until_idle(nodes["a"].client)
        assert stats.held_blocks == 3
        progress = nodes["a"].client.replicate(order("o", "b", blocks))
        await anext(progress)
        assert await nodes["a"].write(blocks) == 3
        assert (await last_progress(progress)).num_acknowledged == 6
        assert await nodes["b"].read(blocks) == 6
