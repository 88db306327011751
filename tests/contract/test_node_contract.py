"""What routers and engines may rely on at every KV node, over TCP or in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from pdd.core.blocks import BlockHash
from pdd.core.errors import BlocksLost, CapacityExhausted, ContextTooLong, NodeFailed
from pdd.core.ids import NodeId, OrderId, PinId
from pdd.core.replication import NodeStats, Pin, ReplicationOrder, ReplicationProgress
from pdd.core.request import SendClass
from pdd.kvnode.base import NodeClient
from tests.contract.node_factories import BLOCK_BYTES, CAPACITY, FACTORIES, A, B, NodesUnderTest
from tests.support.kv_nodes import chain, last_progress, order, until_ready, watch

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


@pytest.fixture(params=FACTORIES)
async def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[NodesUnderTest]:
    async with FACTORIES[request.param](tmp_path) as nodes:
        yield nodes


def background(name: str, hashes: tuple[BlockHash, ...]) -> ReplicationOrder:
    return replace(order(name, B, hashes), send_class=SendClass.BACKGROUND)


async def acknowledged(steps: AsyncGenerator[ReplicationProgress], count: int) -> ReplicationProgress:
    """Follows an order until so many of its blocks have arrived."""
    while (progress := await anext(steps)).num_acknowledged < count:
        pass
    return progress


async def idle_stats(client: NodeClient) -> NodeStats:
    """Once nothing is leased, reserved or under way any more."""
    while True:
        stats = await client.stats()
        if not (stats.leased_blocks or stats.reserved_blocks or stats.writing_blocks or stats.orders or stats.watches):
            return stats
        await asyncio.sleep(0.01)


async def test_an_order_sends_what_the_target_lacks_as_it_appears(nodes: NodesUnderTest):
    blocks = chain(8)
    await nodes.write(B, blocks[:3])
    await nodes.write(A, blocks[:5])
    steps = nodes.client(A).replicate(order("o", B, blocks))
    assert not (await anext(steps)).done
    async with aclosing(nodes.client(B).watch(watch("w", blocks))) as readiness:
        await until_ready(readiness, 5)
        await nodes.write(A, blocks[5:])
        await until_ready(readiness, 8)
    last = await last_progress(steps)
    assert (last.num_missing, last.num_acknowledged, last.sent_bytes) == (5, 5, 5 * BLOCK_BYTES)
    assert (last.backlog, last.background_backlog) == (0, 0)
    assert await nodes.read(B, blocks) == 8
    for node in (A, B):
        assert (await idle_stats(nodes.client(node))).held_blocks == 8


async def test_a_block_that_several_orders_want_crosses_once(nodes: NodesUnderTest):
    blocks = chain(12)
    await nodes.write(A, blocks)
    async with asyncio.TaskGroup() as tasks:
        for n in range(1, 5):
            tasks.create_task(last_progress(nodes.client(A).replicate(order(f"o{n}", B, blocks[: 3 * n]))))
    assert (await nodes.client(B).stats()).received_bytes == {A: 12 * BLOCK_BYTES}


async def test_an_order_for_nothing_is_done_at_once_and_leaves_its_name_free(nodes: NodesUnderTest):
    for _ in range(2):
        last = await last_progress(nodes.client(A).replicate(order("o", B, ())))
        assert (last.num_missing, last.num_acknowledged) == (0, 0)


async def test_a_cancelled_order_sends_no_more_and_unknown_ones_are_ignored(nodes: NodesUnderTest):
    steps = nodes.client(A).replicate(order("o", B, chain(4)))
    await anext(steps)
    await nodes.client(A).cancel(OrderId("o"))
    with pytest.raises(NodeFailed, match="cancelled"):
        await last_progress(steps)
    await nodes.write(A, chain(4))
    await nodes.client(A).cancel(OrderId("never placed"))
    await nodes.client(A).reclassify(OrderId("never placed"), SendClass.BACKGROUND)
    await nodes.client(A).unpin(PinId("never pinned"))
    assert (await idle_stats(nodes.client(A))).sent_bytes == {}


async def test_orders_that_can_never_be_carried_out_fail(nodes: NodesUnderTest):
    with pytest.raises(NodeFailed, match="no peer 'z'"):
        await last_progress(nodes.client(A).replicate(order("o", "z", chain(1))))
    with pytest.raises(ContextTooLong):
        await last_progress(nodes.client(A).replicate(order("o", B, chain(CAPACITY + 1))))
    assert (await idle_stats(nodes.client(A))).orders == 0


async def test_a_reservation_is_met_whole_or_refused(nodes: NodesUnderTest):
    client = nodes.client(B)
    async with aclosing(client.watch(watch("first", chain(2), CAPACITY - 2))) as readiness:
        assert (await anext(readiness)).num_ready == 0
        with pytest.raises(CapacityExhausted):
            await anext(client.watch(watch("second", chain(2, salt="x"), 3)))
        with pytest.raises(ContextTooLong):
            await anext(client.watch(watch("third", (), CAPACITY + 1)))
    await idle_stats(client)
    async with aclosing(client.watch(watch("second", chain(2, salt="x"), 3))) as readiness:
        assert (await anext(readiness)).num_ready == 0


async def test_background_orders_let_normal_ones_pass(nodes: NodesUnderTest):
    slow, urgent = chain(24, salt="slow"), chain(4, salt="urgent")
    nodes.set_rate(40)
    await nodes.write(A, slow)
    behind = nodes.client(A).replicate(background("behind", slow))
    async with aclosing(nodes.client(B).watch(watch("w", slow))) as readiness:
        before = await acknowledged(behind, 2)
        assert before.backlog == 0
        assert before.background_backlog > 10 * BLOCK_BYTES
        await nodes.write(A, urgent)
        await last_progress(nodes.client(A).replicate(order("ahead", B, urgent)))
        assert (await anext(readiness)).num_ready < 20
        nodes.set_rate(None)
        assert (await last_progress(behind)).num_acknowledged == 24


async def test_a_block_that_a_normal_order_wants_too_goes_as_normal(nodes: NodesUnderTest):
    shared = chain(24)
    nodes.set_rate(40)
    await nodes.write(A, shared)
    behind = nodes.client(A).replicate(background("behind", shared))
    await acknowledged(behind, 2)
    ahead = nodes.client(A).replicate(order("ahead", B, shared))
    progress = await anext(ahead)
    while progress.num_missing is None:
        progress = await anext(ahead)
    assert progress.backlog > 0
    assert progress.background_backlog == 0
    nodes.set_rate(None)
    await last_progress(ahead)
    await last_progress(behind)
    assert (await nodes.client(B).stats()).received_bytes == {A: 24 * BLOCK_BYTES}


async def test_an_order_may_step_back_and_come_forward_again(nodes: NodesUnderTest):
    first, second = chain(24, salt="first"), chain(6, salt="second")
    nodes.set_rate(40)
    await nodes.write(A, (*first, *second))
    steps = nodes.client(A).replicate(order("first", B, first))
    await acknowledged(steps, 2)
    await nodes.client(A).reclassify(OrderId("first"), SendClass.BACKGROUND)
    progress = await anext(steps)
    while progress.background_backlog == 0:
        progress = await anext(steps)
    assert progress.backlog == 0
    await last_progress(nodes.client(A).replicate(order("second", B, second)))
    async with aclosing(nodes.client(B).watch(watch("w", first))) as readiness:
        assert (await anext(readiness)).num_ready < 20
    await nodes.client(A).reclassify(OrderId("first"), SendClass.NORMAL)
    while progress.background_backlog > 0:
        progress = await anext(steps)
    assert progress.backlog > 0
    nodes.set_rate(None)
    assert (await last_progress(steps)).num_acknowledged == 24


async def test_pinned_blocks_outlive_all_others_until_they_are_unpinned(nodes: NodesUnderTest):
    kept, later = chain(8, salt="kept"), chain(2, salt="later")
    client = nodes.client(A)
    await nodes.write(A, kept)
    await client.pin(Pin(pin=PinId("p"), hashes=kept))
    await client.pin(Pin(pin=PinId("q"), hashes=later))
    await nodes.write(A, later)
    assert (await client.stats()).pinned_blocks == 10
    for block in chain(CAPACITY, salt="flood"):
        await nodes.write(A, (block,))
    assert await nodes.read(A, kept) == 8
    assert await nodes.read(A, later) == 2
    await client.pin(Pin(pin=PinId("p"), hashes=kept[:4]))
    assert (await client.stats()).pinned_blocks == 6
    await client.unpin(PinId("q"))
    await nodes.write(A, chain(6, salt="more"))
    assert await nodes.read(A, kept) == 4
    assert await nodes.read(A, later) == 0


async def test_pins_give_way_to_reservations_the_oldest_first(nodes: NodesUnderTest):
    old, young = chain(16, salt="old"), chain(16, salt="young")
    client = nodes.client(B)
    await nodes.write(B, (*young, *old))
    for name, hashes in (("old", old), ("young", young)):
        await client.pin(Pin(pin=PinId(name), hashes=hashes))
    wanted = chain(20, salt="wanted")
    async with aclosing(client.watch(watch("w", wanted))) as readiness:
        assert (await anext(readiness)).num_ready == 0
        await nodes.write(A, wanted)
        await last_progress(nodes.client(A).replicate(order("o", B, wanted)))
        await until_ready(readiness, 20)
    assert await nodes.read(B, old) == 0
    assert await nodes.read(B, young) == 12


@pytest.mark.parametrize("how", ["evicted", "full"])
async def test_blocks_that_will_not_come_are_said_to_be_lost(nodes: NodesUnderTest, how: str):
    blocks = chain(2)
    if how == "evicted":
        await nodes.stop_b()
        await nodes.write(A, blocks)
        steps = nodes.client(A).replicate(order("o", B, blocks))
        await anext(steps)
        await nodes.write(A, chain(CAPACITY, salt="flood"))
        await nodes.restart_b()
        with pytest.raises(BlocksLost, match="evicted"):
            await last_progress(steps)
        return
    hogs = chain(CAPACITY, salt="hogs")
    await nodes.write(A, hogs)
    async with aclosing(nodes.client(A).watch(watch("w", hogs))) as readiness:
        await anext(readiness)
        steps = nodes.client(A).replicate(order("o", B, blocks))
        await anext(steps)
        assert await nodes.write(A, blocks) == 0
        with pytest.raises(BlocksLost, match="full"):
            await last_progress(steps)


async def test_a_restarted_target_is_another_instance_and_gets_everything_again(nodes: NodesUnderTest):
    blocks = chain(16)
    before = (await nodes.client(B).stats()).instance
    nodes.set_rate(40)
    await nodes.write(A, blocks)
    steps = nodes.client(A).replicate(order("o", B, blocks))
    readiness = nodes.client(B).watch(watch("w", blocks))
    await anext(readiness)
    await nodes.client(B).pin(Pin(pin=PinId("p"), hashes=blocks))
    await acknowledged(steps, 2)
    await nodes.stop_b()
    with pytest.raises(NodeFailed):
        await until_ready(readiness, 16)
    with pytest.raises(NodeFailed):
        await anext(nodes.client(B).watch(watch("another", blocks)))
    nodes.set_rate(None)
    await nodes.restart_b()
    assert (await last_progress(steps)).num_missing == 16
    assert await nodes.read(B, blocks) == 16
    stats = await until_reached(nodes, B)
    assert stats.instance != before
    assert (stats.pinned_blocks, stats.leased_blocks, stats.watches) == (0, 0, 0)


async def until_reached(nodes: NodesUnderTest, node: NodeId) -> NodeStats:
    """A client notices within moments that its node is back."""
    while True:
        try:
            return await idle_stats(nodes.client(node))
        except NodeFailed:
            await asyncio.sleep(0.01)


async def test_orders_to_a_target_that_stays_away_fail_and_name_it(nodes: NodesUnderTest):
    await nodes.stop_b()
    await nodes.write(A, chain(1))
    with pytest.raises(NodeFailed, match="'b'"):
        await last_progress(nodes.client(A).replicate(order("o", B, chain(1))))
    assert (await idle_stats(nodes.client(A))).orders == 0
    await nodes.restart_b()
    await last_progress(nodes.client(A).replicate(order("again", B, chain(1))))
