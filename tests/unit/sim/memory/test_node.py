from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from pdd.core.blocks import BlockHash, block_hashes
from pdd.core.errors import CapacityExhausted, ContextTooLong, NodeFailed
from pdd.core.ids import NodeId, OrderId, Salt, WatchId, WorkerId
from pdd.core.replication import Readiness, ReplicationOrder, ReplicationProgress, Watch
from pdd.core.units import BytesPerSecond, Seconds
from pdd.sim.loop import run
from pdd.sim.memory.line import MemoryLine
from pdd.sim.memory.network import MemoryNetwork
from pdd.sim.memory.node import MemoryNode
from tests.support.worlds import BLOCK_BYTES, KV_FORMAT

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def chain(num_blocks: int, start: int = 0) -> tuple[BlockHash, ...]:
    return block_hashes(KV_FORMAT, Salt(""), tuple(range(start, start + 16 * num_blocks)))


class Pair:
    """Two nodes joined by a line of 10 blocks/s and 0.1 s."""

    def __init__(self, capacity: int = 64) -> None:
        self.network = MemoryNetwork(KV_FORMAT)
        self.a, self.b, self.c = (self.network.add(node, capacity=capacity) for node in (A, B, C))
        self.line = MemoryLine(rate=BytesPerSecond(10 * BLOCK_BYTES), delay=Seconds(0.1))
        self.network.join(A, B, self.line)
        self.network.join(C, B, self.line)


def write(node: MemoryNode, hashes: tuple[BlockHash, ...]) -> None:
    store = node.open_store(WorkerId("writer"))
    slots = store.begin_write(hashes)
    for slot in slots:
        store.view(slot.slot)[:] = slot.hash * (BLOCK_BYTES // 32)
    store.commit(slots)
    store.close()


def content(node: MemoryNode, hashes: tuple[BlockHash, ...]) -> list[bytes]:
    store = node.open_store(WorkerId("reader"))
    lease = store.lease(hashes)
    held = [bytes(store.view(slot)) for slot in lease.slots]
    store.release(lease)
    store.close()
    return held


def order(hashes: tuple[BlockHash, ...], number: int = 0, target: NodeId = B) -> ReplicationOrder:
    return ReplicationOrder(order=OrderId(f"o{number}"), target=target, hashes=hashes)


def watch_for(hashes: tuple[BlockHash, ...], reserve: int, number: int = 0) -> Watch:
    return Watch(watch=WatchId(f"w{number}"), hashes=hashes, reserve_blocks=reserve)


async def last(steps: AsyncGenerator[ReplicationProgress]) -> ReplicationProgress:
    return [progress async for progress in steps][-1]


async def failure_of(steps: AsyncGenerator[ReplicationProgress]) -> str:
    try:
        await last(steps)
    except NodeFailed as error:
        return str(error)
    raise AssertionError("the order did not fail")


async def kill_when_two_have_arrived(steps: AsyncGenerator[ReplicationProgress], node: MemoryNode) -> None:
    async for progress in steps:
        if progress.num_acknowledged == 2:
            node.kill()


async def until_ready(readings: AsyncGenerator[Readiness], num_ready: int) -> float:
    async for readiness in readings:
        if readiness.num_ready >= num_ready:
            break
    return asyncio.get_running_loop().time()


def test_blocks_cross_whole_and_at_the_lines_rate() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(10)
        write(pair.a, hashes)
        progress = await last(pair.a.replicate(order(hashes)))
        assert (progress.num_missing, progress.num_acknowledged, progress.done) == (10, 10, True)
        assert progress.sent_bytes == 10 * BLOCK_BYTES
        assert asyncio.get_running_loop().time() == pytest.approx(0.2 + 1.0 + 0.2, abs=0.05)
        assert content(pair.b, hashes) == [block * (BLOCK_BYTES // 32) for block in hashes]
        assert (await pair.a.stats()).orders == 0

    run(main())


def test_a_standing_order_sends_blocks_as_they_appear() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(4)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(last(pair.a.replicate(order(hashes))))
            await asyncio.sleep(5.0)
            for block in hashes:
                write(pair.a, (block,))
                await asyncio.sleep(1.0)
                assert content(pair.b, (block,)), "it was there long before the next one was written"
        assert sending.result().done

    run(main())


def test_no_block_crosses_twice_whichever_order_or_source_asks() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(8)
        write(pair.a, hashes)
        write(pair.c, hashes)
        write(pair.b, hashes[:2])
        async with asyncio.TaskGroup() as tasks:
            for number, node in enumerate((pair.a, pair.a, pair.c)):
                tasks.create_task(last(node.replicate(order(hashes, number))))
        received = (await pair.b.stats()).received_bytes
        assert sum(received.values()) == 6 * BLOCK_BYTES

    run(main())


def test_a_cancelled_order_sends_nothing_more_and_an_unknown_one_is_ignored() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(8)
        write(pair.a, hashes)
        steps = pair.a.replicate(order(hashes))
        await anext(steps)
        await steps.aclose()
        await asyncio.sleep(0.45)
        await pair.a.cancel(OrderId("o0"))
        await pair.a.cancel(OrderId("never given"))
        await asyncio.sleep(5.0)
        assert 1 <= (await pair.b.stats()).held_blocks <= 4
        assert (await pair.a.stats()).orders == 0

    run(main())


def test_a_watch_reserves_leases_reports_and_lets_go() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(4)
        write(pair.b, hashes[:1])
        readings = pair.b.watch(watch_for(hashes, reserve=6))
        assert (await anext(readings)).num_ready == 1
        stats = await pair.b.stats()
        assert (stats.leased_blocks, stats.reserved_blocks, stats.watches) == (1, 5, 1)
        write(pair.a, hashes)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(last(pair.a.replicate(order(hashes))))
            tasks.create_task(until_ready(readings, 4))
        assert (await pair.b.stats()).leased_blocks == 4
        await readings.aclose()
        stats = await pair.b.stats()
        assert (stats.leased_blocks, stats.reserved_blocks, stats.watches, stats.held_blocks) == (0, 0, 0, 4)

    run(main())


def test_a_reservation_is_refused_whole_and_never_when_it_could_never_be_met() -> None:
    async def main() -> None:
        pair = Pair(capacity=8)
        first = pair.b.watch(watch_for(chain(4), reserve=6))
        await anext(first)
        with pytest.raises(CapacityExhausted):
            await anext(pair.b.watch(watch_for(chain(2, start=500), reserve=3, number=1)))
        with pytest.raises(ContextTooLong):
            await anext(pair.b.watch(watch_for(chain(2, start=500), reserve=9, number=2)))
        await first.aclose()
        second = pair.b.watch(watch_for(chain(2, start=500), reserve=3, number=3))
        await anext(second)
        await second.aclose()
        assert (await pair.b.stats()).reserved_blocks == 0

    run(main())


def test_what_found_no_room_is_sent_when_a_watch_reserves_it() -> None:
    async def main() -> None:
        pair, hashes = Pair(capacity=8), chain(4)
        write(pair.a, hashes)
        hog = pair.b.watch(watch_for(chain(8, start=500), reserve=8))
        await anext(hog)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(last(pair.a.replicate(order(hashes))))
            await asyncio.sleep(5.0)
            assert (await pair.b.stats()).held_blocks == 0
            await hog.aclose()
        assert (await pair.b.stats()).held_blocks == 4

    run(main())


def test_a_killed_target_fails_its_watches_at_once_and_gets_everything_again_when_it_is_back() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(10)
        write(pair.a, hashes)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(last(pair.a.replicate(order(hashes))))
            readings = pair.b.watch(watch_for(hashes, reserve=10))
            await until_ready(readings, 3)
            pair.b.kill()
            with pytest.raises(NodeFailed):
                await until_ready(pair.b.watch(watch_for(hashes, reserve=10, number=1)), 10)
            await asyncio.sleep(2.0)
            pair.b.restart()
        assert sending.result().done
        assert sending.result().num_missing == 10
        assert len(content(pair.b, hashes)) == 10

    run(main())


def test_orders_to_a_target_that_stays_away_fail_in_bounded_time() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(10)
        write(pair.a, hashes)
        with pytest.raises(NodeFailed):
            await kill_when_two_have_arrived(pair.a.replicate(order(hashes)), pair.b)
        assert asyncio.get_running_loop().time() < 12.0
        assert (await pair.a.stats()).orders == 0

    run(main())


def test_a_killed_source_fails_its_orders_and_forgets_its_blocks() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(10)
        write(pair.a, hashes)
        before = (await pair.a.stats()).instance
        with pytest.raises(NodeFailed):
            await kill_when_two_have_arrived(pair.a.replicate(order(hashes)), pair.a)
        with pytest.raises(NodeFailed):
            await pair.a.stats()
        pair.a.restart()
        stats = await pair.a.stats()
        assert stats.instance != before
        assert stats.held_blocks == 0
        assert (await pair.b.stats()).writing_blocks == 0

    run(main())


def test_a_cut_line_loses_what_is_on_it_and_goes_on_when_it_is_restored() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(10)
        write(pair.a, hashes)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(last(pair.a.replicate(order(hashes))))
            await asyncio.sleep(0.65)
            pair.network.cut(pair.line)
            held = (await pair.b.stats()).held_blocks
            assert 0 < held < 10
            await asyncio.sleep(5.0)
            stats = await pair.b.stats()
            assert (stats.held_blocks, stats.writing_blocks) == (held, 0)
            pair.network.restore(pair.line)
        assert sending.result().done
        assert content(pair.b, hashes) == [block * (BLOCK_BYTES // 32) for block in hashes]

    run(main())


def test_the_rate_is_what_the_line_carries_and_the_backlog_what_is_still_owed() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(40)
        write(pair.a, hashes)
        async for progress in pair.a.replicate(order(hashes)):
            if progress.num_acknowledged == 30:
                assert progress.rate == pytest.approx(10 * BLOCK_BYTES, rel=0.1)
                assert progress.backlog == 10 * BLOCK_BYTES

    run(main())


def test_an_order_whose_block_was_evicted_fails_and_owes_nothing_unless_it_is_written_again() -> None:
    async def main() -> None:
        pair = Pair(capacity=4)
        write(pair.a, chain(2))
        pair.network.cut(pair.line)
        async with asyncio.TaskGroup() as tasks:
            lost = tasks.create_task(failure_of(pair.a.replicate(order(chain(2), 2))))
            saved = tasks.create_task(last(pair.a.replicate(order(chain(1), 1))))
            await asyncio.sleep(0.1)
            write(pair.a, chain(4, start=1000))
            pair.network.restore(pair.line)
            await asyncio.sleep(1.0)
            write(pair.a, chain(1))
        assert saved.result().done
        assert "evicted" in lost.result()
        assert asyncio.get_running_loop().time() < 4.0
        assert (await pair.a.stats()).orders == 0

    run(main())


def test_a_store_of_a_dead_node_is_dead_even_when_the_node_is_back() -> None:
    async def main() -> None:
        pair = Pair()
        store = pair.a.open_store(WorkerId("engine"))
        pair.a.kill()
        with pytest.raises(NodeFailed):
            pair.a.open_store(WorkerId("engine"))
        pair.a.restart()
        with pytest.raises(NodeFailed):
            store.lease(chain(1))
        store.close()
        pair.a.open_store(WorkerId("engine")).close()

    run(main())
