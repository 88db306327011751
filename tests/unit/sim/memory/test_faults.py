"""In-memory nodes that hang or are slow, lines that stall, and worlds that keep no payload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from itertools import pairwise

import pytest

from pdd.core.blocks import BlockHash
from pdd.core.errors import NodeFailed
from pdd.core.ids import OrderId, PinId, WorkerId
from pdd.core.replication import Pin, Readiness, ReplicationOrder
from pdd.core.request import SendClass
from pdd.core.units import BytesPerSecond, Seconds
from pdd.kvnode.patience import ROUTER_PATIENCE
from pdd.sim.loop import run
from pdd.sim.memory.line import MemoryLine
from pdd.sim.memory.network import MemoryNetwork
from tests.support.worlds import BLOCK_BYTES, KV_FORMAT
from tests.unit.sim.memory.test_node import (
    A,
    B,
    Pair,
    chain,
    content,
    failure_of,
    last,
    order,
    until_ready,
    watch_for,
    write,
)


def now() -> float:
    return asyncio.get_running_loop().time()


async def readings(steps: AsyncGenerator[Readiness]) -> list[int]:
    """Reports until the node is lost."""
    reports: list[int] = []
    with suppress(NodeFailed):
        while True:
            reports.append((await anext(steps)).num_ready)
    return reports


async def duration(call: Coroutine[object, object, object]) -> float:
    began = now()
    await call
    return now() - began


# Hanging --------------------------------------------------------------------------------------------------------------


def test_a_short_hang_of_the_target_costs_only_time() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(10)
        write(pair.a, hashes)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(last(pair.a.replicate(order(hashes))))
            ready = tasks.create_task(until_ready(pair.b.watch(watch_for(hashes, 10)), 10))
            await asyncio.sleep(0.5)
            pair.b.hang()
            held = pair.b.life.index.num_held
            await asyncio.sleep(1.5)
            assert pair.b.life.index.num_held == held
            pair.b.resume()
        assert sending.result().num_acknowledged == 10
        assert sending.result().sent_bytes == 10 * BLOCK_BYTES
        assert 2.0 <= ready.result() < 2.5

    run(main())


def test_a_long_hang_loses_the_routers_connection_and_with_it_all_that_stood_on_it() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(4)
        await pair.b.pin(Pin(pin=PinId("p"), hashes=hashes))
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(readings(pair.b.watch(watch_for(hashes, 8))))
            ordering = tasks.create_task(failure_of(pair.b.replicate(order(hashes, target=A))))
            await asyncio.sleep(1.0)
            pair.b.hang()
            asked_at = now()
            with pytest.raises(NodeFailed, match="does not answer"):
                await pair.b.stats()
            assert now() - asked_at == pytest.approx(ROUTER_PATIENCE, abs=0.1)
        assert watching.result() == [0]
        assert "does not answer" in ordering.result()
        for call in (pair.b.stats(), anext(pair.b.watch(watch_for(hashes, 8, number=1)))):
            with pytest.raises(NodeFailed, match="is not up"):
                await call
        assert pair.b.life.index.num_reserved == 8, "nobody has told it yet"
        pair.b.resume()
        stats = await pair.b.stats()
        assert stats.instance == "b-1"
        assert (stats.reserved_blocks, stats.watches, stats.orders, stats.pinned_blocks) == (0, 0, 0, 0)

    run(main())


def test_a_node_that_hangs_again_is_given_time_again() -> None:
    async def main() -> None:
        pair = Pair()
        steps = pair.b.watch(watch_for(chain(1), 1))
        await anext(steps)
        for _ in range(3):
            pair.b.hang()
            await asyncio.sleep(ROUTER_PATIENCE - 1.0)
            pair.b.resume()
            await asyncio.sleep(0.5)
        assert (await pair.b.stats()).watches == 1
        await steps.aclose()

    run(main())


def test_questions_to_a_hung_node_are_answered_when_it_runs_again_and_in_order() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(2)
        pair.b.hang()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pair.b.pin(Pin(pin=PinId("p"), hashes=hashes)))
            await asyncio.sleep(0.1)
            await pair.b.unpin(PinId("p"))
            asking = tasks.create_task(pair.b.stats())
            await asyncio.sleep(3.0)
            assert not asking.done()
            pair.b.resume()
        write(pair.b, hashes)
        assert (await pair.b.stats()).pinned_blocks == 0

    run(main())


def test_an_engine_hangs_up_on_a_node_that_hangs_and_what_it_held_is_released_afterwards() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(4)
        write(pair.a, hashes[:2])
        store = pair.a.open_store(WorkerId("engine"))
        store.lease(hashes[:2])
        store.begin_write(hashes[2:])
        pair.a.hang()
        assert store.is_alive()
        with pytest.raises(NodeFailed):
            store.lease(hashes)
        assert not store.is_alive()
        with pytest.raises(NodeFailed):
            pair.a.open_store(WorkerId("engine"))
        stats_before = (pair.a.life.index.num_leased, pair.a.life.index.num_writing)
        pair.a.resume()
        assert stats_before == (2, 2)
        assert (pair.a.life.index.num_leased, pair.a.life.index.num_writing) == (0, 0)
        with pytest.raises(NodeFailed):
            store.lease(hashes)
        pair.a.open_store(WorkerId("engine")).close()

    run(main())


def test_orders_to_a_node_that_hangs_on_fail_and_a_later_one_reaches_it_again() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(10)
        write(pair.a, hashes)
        async with asyncio.TaskGroup() as tasks:
            failing = tasks.create_task(failure_of(pair.a.replicate(order(hashes))))
            await asyncio.sleep(0.5)
            pair.b.hang()
        assert "'b'" in failing.result()
        assert 10.0 < now() < 14.0
        pair.b.resume()
        assert (await last(pair.a.replicate(order(hashes, 1)))).num_acknowledged <= 10
        assert len(content(pair.b, hashes)) == 10
        assert pair.b.life.index.num_writing == 0

    run(main())


def test_what_a_hung_source_claimed_comes_from_another() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(10)
        for node in (pair.a, pair.c):
            write(node, hashes)
        first = pair.a.replicate(order(hashes))
        await anext(first)
        await asyncio.sleep(0.45)
        pair.a.hang()
        second = await last(pair.c.replicate(order(hashes)))
        assert second.done
        assert 10.0 < now() < 13.0
        assert len(content(pair.b, hashes)) == 10
        pair.a.resume()
        await asyncio.sleep(5.0)
        assert (await pair.a.stats()).orders == 0

    run(main())


def test_a_killed_node_hangs_no_more() -> None:
    async def main() -> None:
        pair = Pair()
        pair.b.hang()
        pair.b.kill()
        pair.b.resume()
        with pytest.raises(NodeFailed):
            await pair.b.stats()
        pair.b.restart()
        await asyncio.sleep(2 * ROUTER_PATIENCE)
        assert (await pair.b.stats()).instance == "b-2"

    run(main())


# Slowness -------------------------------------------------------------------------------------------------------------


def test_a_slow_node_answers_late_and_in_order_and_goes_on_so_after_a_restart() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(5)
        pair.b.slow_down(Seconds(0.7))
        assert await duration(pair.b.stats()) == pytest.approx(0.7)
        pair.b.kill()
        pair.b.restart()
        assert await duration(pair.b.stats()) == pytest.approx(0.7)
        write(pair.a, hashes)
        assert await duration(last(pair.a.replicate(order(hashes)))) > 2 * 0.7 + 0.5
        pair.b.slow_down(Seconds(0.0))
        assert await duration(pair.b.stats()) == 0.0

    run(main())


def test_nothing_overtakes_when_a_slow_node_becomes_fast() -> None:
    async def main() -> None:
        pair, seen = Pair(), list[int]()
        attention = pair.b.life.attention
        attention.lag = Seconds(1.0)
        attention.give_to(lambda: seen.append(1))
        attention.lag = Seconds(0.0)
        attention.give_to(lambda: seen.append(2))
        assert seen == []
        await asyncio.sleep(1.0)
        assert seen == [1, 2]

    run(main())


# Lines ----------------------------------------------------------------------------------------------------------------


def test_a_line_that_stalls_for_a_moment_loses_nothing() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(10)
        write(pair.a, hashes)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(last(pair.a.replicate(order(hashes))))
            await asyncio.sleep(0.65)
            pair.network.stall(pair.line)
            await asyncio.sleep(0.2)
            held = pair.b.life.index.num_held
            await asyncio.sleep(1.3)
            assert pair.b.life.index.num_held == held
            pair.network.resume(pair.line)
        assert sending.result().sent_bytes == 10 * BLOCK_BYTES
        assert 2.5 < now() < 3.5

    run(main())


def test_over_a_line_that_stalls_on_orders_fail_and_after_it_others_do_not() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(10)
        write(pair.a, hashes)
        async with asyncio.TaskGroup() as tasks:
            failing = tasks.create_task(failure_of(pair.a.replicate(order(hashes))))
            await asyncio.sleep(0.65)
            pair.network.stall(pair.line)
        assert "unreachable" in failing.result()
        assert 11.0 < now() < 14.0
        pair.network.resume(pair.line)
        assert (await last(pair.a.replicate(order(hashes, 1)))).done
        assert len(content(pair.b, hashes)) == 10

    run(main())


def test_a_stall_of_some_seconds_sends_again_what_was_under_way_and_goes_on() -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(10)
        write(pair.a, hashes)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(last(pair.a.replicate(order(hashes))))
            await asyncio.sleep(0.65)
            pair.network.stall(pair.line)
            await asyncio.sleep(5.0)
            pair.network.resume(pair.line)
        assert sending.result().done
        assert content(pair.b, hashes) == [block * (BLOCK_BYTES // 32) for block in hashes]

    run(main())


def test_patience_with_a_target_that_came_back_in_time_is_not_held_against_it() -> None:
    async def main() -> None:
        pair, hashes = Pair(capacity=256), chain(150)
        write(pair.a, hashes)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(last(pair.a.replicate(order(hashes))))
            await asyncio.sleep(2.0)
            pair.b.kill()
            await asyncio.sleep(2.0)
            pair.b.restart()
        assert sending.result().num_acknowledged == 150
        assert now() > 15.0

    run(main())


@pytest.mark.parametrize("num_turns", range(12))
def test_a_line_that_breaks_and_mends_at_any_moment_brings_everything(num_turns: int) -> None:
    async def main() -> None:
        pair, hashes = Pair(), chain(4)
        pair.line.delay = Seconds(0.0)
        write(pair.a, hashes)
        async with asyncio.timeout(5.0), asyncio.TaskGroup() as tasks:
            tasks.create_task(last(pair.a.replicate(order(hashes))))
            for _ in range(num_turns):
                await asyncio.sleep(0)
            pair.network.cut(pair.line)
            pair.network.restore(pair.line)
        assert len(content(pair.b, hashes)) == 4

    run(main())


def test_background_fills_the_gaps_of_normal_traffic() -> None:
    """At 10 blocks/s, a normal block every 0.4 s leaves three quarters of the line."""

    async def main() -> None:
        pair, urgent, slow = Pair(), chain(10), chain(20, start=5000)
        write(pair.a, slow)
        behind = ReplicationOrder(order=OrderId("slow"), target=B, hashes=slow, send_class=SendClass.BACKGROUND)
        async with asyncio.TaskGroup() as tasks:
            ahead = tasks.create_task(arrivals(pair, urgent))
            tasks.create_task(last(pair.a.replicate(behind)))
            for block in urgent:
                write(pair.a, (block,))
                await asyncio.sleep(0.4)
            ahead_took = ahead.result()
        assert all(later - earlier == pytest.approx(0.4, abs=0.21) for earlier, later in pairwise(ahead_took))
        assert now() < 7.0, "alone, after the others, the background takes 6 s"

    async def arrivals(pair: Pair, hashes: tuple[BlockHash, ...]) -> list[float]:
        times: list[float] = []
        steps = pair.b.watch(watch_for(hashes, len(hashes)))
        sending = pair.a.replicate(order(hashes))
        await anext(sending)
        async for readiness in steps:
            times += [now()] * (readiness.num_ready - len(times))
            if readiness.num_ready == len(hashes):
                return times
        raise AssertionError("the watch ended")

    run(main())


# Payloads and speed ---------------------------------------------------------------------------------------------------


def test_a_world_without_payloads_keeps_its_time_and_its_books() -> None:
    async def main(payload_bytes: int | None) -> tuple[float, dict[str, int], int]:
        network = MemoryNetwork(KV_FORMAT, payload_bytes=payload_bytes)
        a, b = network.add(A, capacity=32), network.add(B, capacity=32)
        network.join(A, B, MemoryLine(rate=BytesPerSecond(10 * BLOCK_BYTES), delay=Seconds(0.1)))
        store = a.open_store(WorkerId("engine"))
        slots = store.begin_write(chain(10))
        size = len(store.view(slots[0].slot))
        store.commit(slots)
        await last(a.replicate(order(chain(10))))
        return now(), (await b.stats()).received_bytes, size

    whole, light = run(main(None)), run(main(8))
    assert whole[:2] == light[:2]
    assert (whole[2], light[2]) == (BLOCK_BYTES, 8)


def test_an_arena_of_a_billion_slots_costs_nothing_until_it_is_used() -> None:
    async def main() -> None:
        network = MemoryNetwork(KV_FORMAT, payload_bytes=0)
        node = network.add(A, capacity=1_000_000_000)
        write_light = node.open_store(WorkerId("engine"))
        write_light.commit(write_light.begin_write(chain(3)))
        assert (await node.stats()).held_blocks == 3

    run(main())


def test_a_fast_line_carries_many_blocks_at_once_at_its_own_rate() -> None:
    async def main() -> None:
        network = MemoryNetwork(KV_FORMAT)
        a = network.add(A, capacity=512)
        network.add(B, capacity=512)
        network.join(A, B, MemoryLine(rate=BytesPerSecond(10_000 * BLOCK_BYTES), delay=Seconds(0.0)))
        write(a, chain(500))
        progress = await last(a.replicate(order(chain(500))))
        assert now() == pytest.approx(500 / 10_000, rel=0.1)
        assert progress.rate == pytest.approx(10_000 * BLOCK_BYTES, rel=0.1)

    run(main())
