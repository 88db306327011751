"""Routers and engines come and go at random moments; when all have left, nodes hold nothing for anybody."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from pdd.core.errors import PddError
from pdd.core.ids import NodeId
from pdd.kvnode.client import TcpNodeClient
from tests.support.kv_nodes import FAST_CLIENT, Cluster, chain, kv_format, order, running_cluster, until_idle, watch

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

NUM_REQUESTS = 120


async def one_request(nodes: Cluster, number: int, rng: random.Random) -> None:
    """A router of its own, an order, a watch and an engine; any of them may be cut short."""
    blocks = chain(rng.randint(1, 8), salt=str(rng.randint(0, 9)))
    with contextlib.suppress(TimeoutError, PddError):
        async with asyncio.timeout(rng.uniform(0.005, 0.2)), router(nodes, "a") as source, router(nodes, "b") as target:
            readiness = target.watch(watch(f"w{number}", blocks, len(blocks) + 2))
            await anext(readiness)
            progress = source.replicate(order(f"o{number}", "b", blocks))
            await anext(progress)
            await nodes["a"].write(blocks)
            if rng.random() < 0.3:
                await source.cancel(order(f"o{number}", "b", ()).order)
            async for report in readiness:
                if report.num_ready == len(blocks):
                    return


def router(nodes: Cluster, name: str) -> TcpNodeClient:
    return TcpNodeClient(node=NodeId(name), address=nodes[name].address, kv_format=kv_format(), settings=FAST_CLIENT)


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_left_when_all_have_left(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    async with running_cluster(tmp_path, "a", "b", capacity=24) as nodes:
        for start in range(0, NUM_REQUESTS, 12):
            async with asyncio.TaskGroup() as tasks:
                for number in range(start, start + 12):
                    tasks.create_task(one_request(nodes, number, rng))
        for name in ("a", "b"):
            stats = await until_idle(nodes[name].client)
            assert stats.held_blocks > 0
            assert stats.digest_failures == 0
