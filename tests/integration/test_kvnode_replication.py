"""Real nodes over loopback: what an engine writes at one node arrives at others, once, and whole."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from pdd.core.errors import CapacityExhausted, ContextTooLong, Incompatible, NodeFailed
from pdd.core.ids import NodeId, PinId
from pdd.core.kv_format import abbreviate
from pdd.core.replication import Pin
from pdd.kvnode.client import TcpNodeClient
from tests.support.bad_line import bad_line
from tests.support.kv_nodes import (
    chain,
    kv_format,
    last_progress,
    order,
    running_cluster,
    until_idle,
    until_ready,
    watch,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

BLOCK_BYTES = kv_format().block_bytes


async def test_blocks_written_at_one_node_arrive_at_another_and_can_be_leased_there(tmp_path: Path):
    blocks = chain(8)
    async with running_cluster(tmp_path, "a", "b") as nodes:
        progress = nodes["a"].client.replicate(order("o", "b", blocks))
        async with aclosing(progress), aclosing(nodes["b"].client.watch(watch("w", blocks))) as readiness:
            first = await anext(progress)
            assert not first.done
            assert await nodes["a"].write(blocks) == 8
            await until_ready(readiness, 8)
            last = await last_progress(progress)
        assert (last.num_missing, last.num_acknowledged) == (8, 8)
        assert last.sent_bytes == 8 * BLOCK_BYTES
        assert last.rate is not None
        assert last.backlog == 0
        assert await nodes["b"].read(blocks) == 8
        for name in ("a", "b"):
            stats = await until_idle(nodes[name].client)
            assert stats.held_blocks == 8
        assert (await nodes["b"].client.stats()).received_bytes == {"a": 8 * BLOCK_BYTES}


async def test_two_targets_are_served_while_blocks_still_appear(tmp_path: Path):
    blocks = chain(6)
    async with running_cluster(tmp_path, "a", "b", "c") as nodes, AsyncExitStack() as stack:
        orders = [nodes["a"].client.replicate(order(f"to-{target}", target, blocks)) for target in ("b", "c")]
        watches = [
            await stack.enter_async_context(aclosing(nodes[target].client.watch(watch("w", blocks))))
            for target in ("b", "c")
        ]
        firsts = [await anext(progress) for progress in orders]
        assert not any(first.done for first in firsts)
        for num_written, block in enumerate(blocks, start=1):
            await nodes["a"].write([block])
            for readiness in watches:
                await until_ready(readiness, num_written)
        for progress in orders:
            assert (await last_progress(progress)).num_acknowledged == 6
        stats = await nodes["a"].client.stats()
        assert stats.sent_bytes == {"b": 6 * BLOCK_BYTES, "c": 6 * BLOCK_BYTES}


async def test_what_the_target_holds_costs_nothing(tmp_path: Path):
    blocks = chain(10)
    async with running_cluster(tmp_path, "a", "b") as nodes:
        await nodes["b"].write(blocks[:7])
        await nodes["a"].write(blocks)
        last = await last_progress(nodes["a"].client.replicate(order("o", "b", blocks)))
        assert (last.num_missing, last.num_acknowledged, last.sent_bytes) == (3, 3, 3 * BLOCK_BYTES)
        again = await last_progress(nodes["a"].client.replicate(order("again", "b", blocks)))
        assert (again.num_missing, again.sent_bytes) == (0, 0)


async def test_an_order_for_nothing_is_done_at_once(tmp_path: Path):
    async with running_cluster(tmp_path, "a", "b") as nodes:
        last = await last_progress(nodes["a"].client.replicate(order("o", "b", ())))
        assert (last.num_missing, last.num_acknowledged) == (0, 0)


async def test_a_block_that_several_orders_want_crosses_once(tmp_path: Path):
    blocks = chain(12)
    async with running_cluster(tmp_path, "a", "b") as nodes:
        orders = [order(f"o{n}", "b", blocks[: 3 * n]) for n in range(1, 5)]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(last_progress(nodes["a"].client.replicate(each))) for each in orders]
            tasks.create_task(nodes["a"].write(blocks))
        assert [task.result().num_acknowledged for task in running] == [3, 6, 9, 12]
        assert sum(task.result().sent_bytes for task in running) == 12 * BLOCK_BYTES
        assert (await nodes["b"].client.stats()).received_bytes == {"a": 12 * BLOCK_BYTES}


async def test_a_block_that_two_sources_offer_crosses_once(tmp_path: Path):
    blocks = chain(12)
    async with running_cluster(tmp_path, "a", "b", "c") as nodes:
        await nodes["a"].write(blocks)
        await nodes["c"].write(blocks)
        async with asyncio.TaskGroup() as tasks:
            for source in ("a", "c"):
                tasks.create_task(last_progress(nodes[source].client.replicate(order("o", "b", blocks))))
        received = (await nodes["b"].client.stats()).received_bytes
        assert sum(received.values()) == 12 * BLOCK_BYTES


async def test_a_block_that_its_first_source_never_gets_comes_from_the_second(tmp_path: Path):
    blocks = chain(3)
    async with running_cluster(tmp_path, "a", "b", "c") as nodes:
        hopeless = nodes["a"].client.replicate(order("o", "b", blocks))
        async with aclosing(hopeless):
            while (await anext(hopeless)).num_missing is None:
                pass
            await nodes["c"].write(blocks)
            last = await last_progress(nodes["c"].client.replicate(order("o", "b", blocks)))
            assert last.sent_bytes == 3 * BLOCK_BYTES
            assert (await last_progress(hopeless)).sent_bytes == 0


async def test_a_cancelled_order_sends_no_more_and_leaves_nothing_behind(tmp_path: Path):
    blocks = chain(4)
    async with running_cluster(tmp_path, "a", "b") as nodes:
        progress = nodes["a"].client.replicate(order("o", "b", blocks))
        await anext(progress)
        await nodes["a"].client.cancel(order("o", "b", ()).order)
        with pytest.raises(NodeFailed, match="cancelled"):
            await last_progress(progress)
        await nodes["a"].write(blocks)
        assert (await until_idle(nodes["a"].client)).sent_bytes == {}


async def test_closing_the_report_leaves_the_order_standing(tmp_path: Path):
    blocks = chain(4)
    async with running_cluster(tmp_path, "a", "b") as nodes:
        progress = nodes["a"].client.replicate(order("o", "b", blocks))
        await anext(progress)
        await progress.aclose()
        async with aclosing(nodes["b"].client.watch(watch("w", blocks))) as readiness:
            await nodes["a"].write(blocks)
            await until_ready(readiness, 4)


async def test_a_watch_that_does_not_fit_now_is_refused_and_one_that_never_fits_is_too_long(tmp_path: Path):
    async with running_cluster(tmp_path, "a", capacity=8) as nodes:
        client = nodes["a"].client
        async with aclosing(client.watch(watch("first", chain(2), 6))) as readiness:
            assert (await anext(readiness)).num_ready == 0
            assert (await client.stats()).reserved_blocks == 6
            with pytest.raises(CapacityExhausted) as refusal:
                await anext(client.watch(watch("second", chain(2, salt="x"), 3)))
            assert refusal.value.retry_after_s > 0
            with pytest.raises(ContextTooLong):
                await anext(client.watch(watch("third", (), 9)))
        await until_idle(client)
        async with aclosing(client.watch(watch("second", chain(2, salt="x"), 3))) as readiness:
            assert (await anext(readiness)).num_ready == 0


async def test_a_watched_target_takes_its_blocks_though_others_fill_it(tmp_path: Path):
    wanted, others = chain(4), chain(8, salt="others")
    async with running_cluster(tmp_path, "a", "b", capacity=8) as nodes:
        readiness = nodes["b"].client.watch(watch("w", wanted))
        assert (await anext(readiness)).num_ready == 0
        await nodes["b"].write(others)
        await nodes["a"].write(wanted)
        await last_progress(nodes["a"].client.replicate(order("o", "b", wanted)))
        await until_ready(readiness, 4)
        await nodes["b"].write(chain(8, salt="more"))
        assert await nodes["b"].read(wanted) == 4
        await readiness.aclose()


async def test_a_restarted_target_is_offered_everything_again(tmp_path: Path):
    blocks = chain(16)
    async with bad_line() as line, running_cluster(tmp_path, "a", "b", routes={("a", "b"): line.address}) as nodes:
        line.there = nodes["b"].address
        line.bytes_per_second = 10 * BLOCK_BYTES
        await nodes["a"].write(blocks)
        progress = nodes["a"].client.replicate(order("o", "b", blocks))
        while (await anext(progress)).num_acknowledged < 2:
            pass
        readiness = nodes["b"].client.watch(watch("w", blocks))
        await anext(readiness)
        await nodes["b"].stop()
        with pytest.raises(NodeFailed):
            await until_ready(readiness, 16)
        line.bytes_per_second = None
        await nodes["b"].restart()
        last = await last_progress(progress)
        assert last.num_missing == 16
        assert await nodes["b"].read(blocks) == 16
        assert (await until_idle(nodes["b"].client)).held_blocks == 16


async def test_when_the_source_dies_another_one_finishes_the_transfer(tmp_path: Path):
    blocks = chain(16)
    async with bad_line() as line, running_cluster(tmp_path, "a", "b", "c", routes={("a", "b"): line.address}) as nodes:
        line.there = nodes["b"].address
        line.bytes_per_second = 10 * BLOCK_BYTES
        for source in ("a", "c"):
            await nodes[source].write(blocks)
        first = nodes["a"].client.replicate(order("o", "b", blocks))
        while (await anext(first)).num_acknowledged < 2:
            pass
        async with asyncio.TaskGroup() as tasks:
            second = tasks.create_task(last_progress(nodes["c"].client.replicate(order("o", "b", blocks))))
            await nodes["a"].stop()
            with pytest.raises(NodeFailed):
                await last_progress(first)
        assert second.result().sent_bytes < 16 * BLOCK_BYTES
        assert await nodes["b"].read(blocks) == 16
        await until_idle(nodes["b"].client)


@pytest.mark.parametrize("how", ["cut", "freeze"])
async def test_a_broken_line_is_reopened_and_only_the_rest_is_sent_again(tmp_path: Path, how: str):
    blocks = chain(24)
    async with bad_line() as line, running_cluster(tmp_path, "a", "b", routes={("a", "b"): line.address}) as nodes:
        line.there = nodes["b"].address
        line.bytes_per_second = 20 * BLOCK_BYTES
        await nodes["a"].write(blocks)
        progress = nodes["a"].client.replicate(order("o", "b", blocks))
        while (await anext(progress)).num_acknowledged < 4:
            pass
        if how == "cut":
            line.cut()
        else:
            line.freeze()
            await line.second_connection.wait()
            line.thaw()
        line.bytes_per_second = None
        last = await last_progress(progress)
        assert last.num_acknowledged == last.num_missing
        assert await nodes["b"].read(blocks) == 24
        received = (await until_idle(nodes["b"].client)).received_bytes["a"]
        assert received <= 28 * BLOCK_BYTES, "blocks that the target held already were sent again"


async def test_a_damaged_block_is_never_seen_and_is_sent_again(tmp_path: Path):
    blocks = chain(6)
    async with bad_line() as line, running_cluster(tmp_path, "a", "b", routes={("a", "b"): line.address}) as nodes:
        line.there = nodes["b"].address
        line.flips = [3 * BLOCK_BYTES]
        await nodes["a"].write(blocks)
        last = await last_progress(nodes["a"].client.replicate(order("o", "b", blocks)))
        assert last.sent_bytes == 7 * BLOCK_BYTES
        stats = await until_idle(nodes["b"].client)
        assert (stats.digest_failures, stats.held_blocks) == (1, 6)
        assert await nodes["b"].read(blocks) == 6


async def test_an_order_over_a_line_that_damages_everything_fails(tmp_path: Path):
    blocks = chain(2)
    async with bad_line() as line, running_cluster(tmp_path, "a", "b", routes={("a", "b"): line.address}) as nodes:
        line.there = nodes["b"].address
        line.flips = [n * BLOCK_BYTES // 2 for n in range(2, 40)]
        await nodes["a"].write(blocks)
        with pytest.raises(NodeFailed, match="damaged"):
            await last_progress(nodes["a"].client.replicate(order("o", "b", blocks)))
        assert await nodes["b"].read(blocks) == 0
        for name in ("a", "b"):
            await until_idle(nodes[name].client)


async def test_orders_to_a_node_that_stays_unreachable_fail_and_name_it(tmp_path: Path):
    async with running_cluster(tmp_path, "a", "b") as nodes:
        await nodes["b"].stop()
        await nodes["a"].write(chain(1))
        with pytest.raises(NodeFailed, match=r"unreachable.*'b'"):
            await last_progress(nodes["a"].client.replicate(order("o", "b", chain(1))))
        await until_idle(nodes["a"].client)
        await nodes["b"].restart()
        await last_progress(nodes["a"].client.replicate(order("again", "b", chain(1))))


async def test_an_order_to_a_node_that_nobody_knows_fails(tmp_path: Path):
    async with running_cluster(tmp_path, "a") as nodes:
        with pytest.raises(NodeFailed, match="no peer 'z'"):
            await last_progress(nodes["a"].client.replicate(order("o", "z", chain(1))))


async def test_nodes_of_different_formats_refuse_each_other_with_both_descriptions(tmp_path: Path):
    other = kv_format(model="another-model")
    async with running_cluster(tmp_path, "a", "b", forms={"b": other}) as nodes:
        with pytest.raises(Incompatible) as refusal:
            await last_progress(nodes["a"].client.replicate(order("o", "b", chain(1))))
        assert abbreviate(kv_format().description) in str(refusal.value)
        assert abbreviate(other.description) in str(refusal.value)
        assert "differ in model" in str(refusal.value)
        await until_idle(nodes["a"].client)
        assert (await nodes["b"].client.stats()).received_bytes == {}


async def test_a_source_whose_arena_is_full_says_so_instead_of_waiting_for_ever(tmp_path: Path):
    pinned, more = chain(4, salt="pinned"), chain(2)
    async with running_cluster(tmp_path, "a", "b", capacity=4) as nodes:
        await nodes["a"].write(pinned)
        async with aclosing(nodes["a"].client.watch(watch("w", pinned))) as readiness:
            assert (await anext(readiness)).num_ready == 4
            progress = nodes["a"].client.replicate(order("o", "b", more))
            await anext(progress)
            assert await nodes["a"].write(more) == 0
            with pytest.raises(NodeFailed, match="full"):
                await last_progress(progress)


async def test_an_order_whose_block_was_evicted_before_it_was_sent_fails_soon(tmp_path: Path):
    blocks = chain(2)
    async with running_cluster(tmp_path, "a", "b", capacity=4) as nodes:
        await nodes["b"].stop()
        await nodes["a"].write(blocks)
        progress = nodes["a"].client.replicate(order("o", "b", blocks))
        await anext(progress)
        assert await nodes["a"].write(chain(4, salt="other")) == 4
        await nodes["b"].restart()
        with pytest.raises(NodeFailed, match="evicted at the source"):
            await last_progress(progress)
        await until_idle(nodes["a"].client)
        for name in ("before they are written", "after that"):
            again = nodes["a"].client.replicate(order(name, "b", blocks))
            await anext(again)
            await nodes["a"].write(blocks)
            await last_progress(again)
        assert await nodes["b"].read(blocks) == 2


async def test_pins_end_with_their_routers_connection_and_only_they(tmp_path: Path):
    mine, theirs = chain(3, salt="mine"), chain(2, salt="theirs")
    async with running_cluster(tmp_path, "a") as nodes:
        await nodes["a"].write((*mine, *theirs))
        await nodes["a"].client.pin(Pin(pin=PinId("p"), hashes=mine))
        address = nodes["a"].address
        async with TcpNodeClient(node=NodeId("a"), address=address, kv_format=kv_format()) as other:
            await other.pin(Pin(pin=PinId("p"), hashes=theirs))
            assert (await other.stats()).pinned_blocks == 5
        num_pinned = 5
        while num_pinned == 5:
            await asyncio.sleep(0.01)
            num_pinned = (await nodes["a"].client.stats()).pinned_blocks
        assert num_pinned == 3
