"""Engines beside real KV nodes: blocks cross from node to node, and a node's death stops nobody."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from pdd.core.blocks import block_hashes
from pdd.core.ids import NodeId, OrderId, Salt, WorkerId
from pdd.core.replication import ReplicationOrder
from pdd.core.units import Seconds
from pdd.engine.catalog import find_model
from pdd.kvnode.local import LocalNode
from tests.support.embedded import SEEDED, generation, make_core, prompt, run
from tests.support.kv_nodes import RunningNode, running_cluster

from pdd.engine.embedded.engine import EmbeddedSettings, open_embedded_engine  # isort: skip  # torch, after its environment

pytestmark = pytest.mark.anyio

MODEL = find_model("tiny-random")
FORMAT = MODEL.kv_format(16)
SETTINGS = EmbeddedSettings(worker=WorkerId("w"), model=MODEL, cache_tokens=2048, max_model_tokens=1024)
REQUEST = generation(prompt(200), max_tokens=40, sampling=SEEDED)


def engine_at(node: RunningNode, name: str):
    connect = partial(LocalNode.connect, node.socket_path, FORMAT, owner=WorkerId(name), timeout=Seconds(5.0))
    return open_embedded_engine(replace(SETTINGS, worker=WorkerId(name)), connect)


async def collect(engine, request) -> list[int]:
    return [token async for span in engine.generate(request) for token in span.tokens]


async def until_connected(engine) -> None:
    """An engine looks for its node when it has something for it, and not before its pause is over."""
    async with asyncio.timeout(20):
        number = 0
        while not (await engine.stats()).node_connected:
            number += 1
            await collect(engine, replace(REQUEST, max_tokens=2, salt=Salt(f"knock {number}")))
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return run(make_core(), REQUEST)[0]


async def test_an_answer_goes_on_at_another_node_with_the_blocks_that_crossed(tmp_path, expected):
    async with (
        running_cluster(tmp_path, "a", "b", form=FORMAT, capacity=64) as cluster,
        engine_at(cluster["a"], "prefill") as prefill,
        engine_at(cluster["b"], "main") as main,
    ):
        hashes = block_hashes(FORMAT, Salt(""), REQUEST.known_tokens)
        order = ReplicationOrder(order=OrderId("o"), target=NodeId("b"), hashes=hashes)
        async with asyncio.TaskGroup() as group:
            head = group.create_task(collect(prefill, replace(REQUEST, max_tokens=10)))
            async for progress in cluster["a"].client.replicate(order):
                if progress.done:
                    break
        rest = replace(REQUEST, known_tokens=(*REQUEST.known_tokens, *head.result()), max_tokens=30)
        assert head.result() + await collect(main, rest) == expected
        assert (await main.stats()).num_imported_blocks == 12
        stats = await cluster["b"].client.stats()
        assert (stats.leased_blocks, stats.writing_blocks) == (0, 0)
        assert stats.held_blocks == 12 + 2  # 239 tokens have KV: the answer's full blocks are there too


async def test_a_node_that_dies_and_comes_back_costs_no_token(tmp_path, expected):
    async with (
        running_cluster(tmp_path, "a", form=FORMAT, capacity=64) as cluster,
        engine_at(cluster["a"], "engine") as engine,
    ):
        tokens = []
        async for span in engine.generate(REQUEST):
            tokens += span.tokens
            if len(tokens) == len(span.tokens):
                await cluster["a"].stop()
        assert tokens == expected
        assert await collect(engine, replace(REQUEST, salt=Salt("two"))) == expected
        assert not (await engine.stats()).node_connected
        await cluster["a"].restart()
        await until_connected(engine)
        assert await collect(engine, REQUEST) == expected
        held = (await cluster["a"].client.stats()).held_blocks
        assert held >= 12  # the restarted node got what the engine's own cache still had


async def test_an_engine_starts_before_its_node(tmp_path, expected):
    async with running_cluster(tmp_path, "a", form=FORMAT, capacity=64) as cluster:
        await cluster["a"].stop()
        async with engine_at(cluster["a"], "engine") as engine:
            assert await collect(engine, REQUEST) == expected
            await cluster["a"].restart()
            await until_connected(engine)
        assert (await cluster["a"].client.stats()).held_blocks > 0
