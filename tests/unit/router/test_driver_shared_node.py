"""Prefill and relay decode may share a node: then nothing is sent between them, and what the node loses never comes."""

from __future__ import annotations

import asyncio
from functools import partial

from pdd.core.ids import NodeId, WorkerId
from pdd.core.request import Role, Route, Steering
from pdd.core.topology import EngineKind, EngineTable, LinkTable, NodeTable, RouterTable, Topology
from pdd.core.units import BitsPerSecond, Bytes
from pdd.engine.scripted.engine import Script, ScriptedEngine
from pdd.sim.loop import run
from pdd.sim.memory.node import MemoryNode
from pdd.sim.world import World, build_world, running
from tests.support.worlds import BLOCK_BYTES, KV_FORMAT, VOCAB_SIZE, expected_answer, make_request

ARENA = Bytes(1000 * BLOCK_BYTES)


def engine_table(name: str, role: Role, cluster: str, node: str) -> EngineTable:
    return EngineTable(
        name=WorkerId(name), role=role, cluster=cluster, node=NodeId(node), kind=EngineKind.SCRIPTED, cache_tokens=512
    )


TOPOLOGY = Topology(
    name="shared",
    model="scripted",
    nodes=(
        NodeTable(name=NodeId("home"), cluster="A", arena_bytes=ARENA),
        NodeTable(name=NodeId("abroad"), cluster="B", arena_bytes=ARENA),
    ),
    engines=(
        engine_table("p", Role.PREFILL, "A", "home"),
        engine_table("r", Role.RELAY_DECODE, "A", "home"),
        engine_table("m", Role.MAIN_DECODE, "B", "abroad"),
    ),
    router=RouterTable(cluster="A"),
    links=(LinkTable(name="wan", clusters=("A", "B"), rate_bits_per_s=BitsPerSecond(8.0 * BLOCK_BYTES)),),
)


def make_engine(table: EngineTable, node: MemoryNode) -> ScriptedEngine:
    return ScriptedEngine(
        table.name,
        kv_format=KV_FORMAT,
        script=Script(prefill_tokens_per_s=200.0, prefill_chunk_tokens=32, vocab_size=VOCAB_SIZE),
        connect_store=partial(node.open_store, table.name),
    )


async def ask_while_home_restarts(world: World) -> float:
    """How long the second token took."""
    request = make_request(1, prompt_tokens=160, max_tokens=20, steering=Steering(route=Route.RELAY))
    loop = asyncio.get_running_loop()
    loop.call_later(0.4, world.nodes[NodeId("home")].kill)
    loop.call_later(0.5, world.nodes[NodeId("home")].restart)
    tokens: list[int] = []
    times: list[float] = []
    async with world.driver.open(request) as answer:
        async for span in answer:
            tokens += span.tokens
            times += [loop.time()] * len(span.tokens)
    assert tuple(tokens) == expected_answer(request)
    return times[1] - times[0]


def test_blocks_that_a_shared_node_lost_are_not_waited_for() -> None:
    async def main() -> None:
        async with asyncio.timeout(600), running(build_world(TOPOLOGY, KV_FORMAT, make_engine)) as world:
            assert await ask_while_home_restarts(world) < 5.0

    run(main())
