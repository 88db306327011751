"""What a scripted engine does with its KV node."""

import asyncio

import numpy as np
import pytest

from pdd.core.blocks import block_hashes
from pdd.core.errors import Incompatible, RemoteProtocolError
from pdd.core.ids import Salt
from pdd.core.request import GREEDY
from pdd.core.units import Bytes
from pdd.engine.scripted.engine import Script, scripted_answer
from pdd.engine.scripted.kv import block_payload
from pdd.sim.loop import run
from tests.unit.engine.scripted_support import (
    FORMAT,
    PROMPT,
    MemoryNode,
    collect,
    engine,
    generation,
    tokens_of,
)

SLOW = Script(prefill_tokens_per_s=1.0, prefill_chunk_tokens=8, token_interval=0.0)
PROMPT_BLOCKS = block_hashes(FORMAT, Salt(""), PROMPT)


async def seconds_for(worker, asked) -> float:
    began = asyncio.get_running_loop().time()
    await collect(worker, asked)
    return asyncio.get_running_loop().time() - began


def test_no_eight_bytes_of_a_payload_are_equal_to_others_and_it_follows_from_the_hash():
    payload = block_payload(PROMPT_BLOCKS[0], Bytes(4096))
    assert len(set(payload.view(np.uint64).tolist())) == 512
    assert np.array_equal(payload, block_payload(PROMPT_BLOCKS[0], Bytes(4096)))
    assert not np.array_equal(payload, block_payload(PROMPT_BLOCKS[1], Bytes(4096)))
    assert len(block_payload(PROMPT_BLOCKS[0], Bytes(13))) == 13


def test_blocks_reach_the_node_as_they_fill_at_prefill_and_at_decode():
    async def scenario() -> None:
        node = MemoryNode()
        worker = engine(SLOW, connect_store=node.connect)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(collect(worker, generation(max_tokens=8)))
            await asyncio.sleep(8.5)
            assert tuple(node.committed) == PROMPT_BLOCKS[:2]
        answer = tokens_of(task.result())
        # 21 + 8 tokens; the last has no KV: 28 tokens are 7 blocks.
        assert tuple(node.committed) == block_hashes(FORMAT, Salt(""), PROMPT + answer)
        assert len(node.committed) == 7
        assert all(
            bytes(node.contents[slot]) == block_payload(block, FORMAT.block_bytes).tobytes()
            for block, slot in node.committed.items()
        )
        assert node.num_leases == 0

    run(scenario())


def test_another_engine_of_the_node_loads_what_the_first_one_wrote():
    async def scenario() -> None:
        node = MemoryNode()
        assert await seconds_for(engine(SLOW, connect_store=node.connect), generation(max_tokens=1)) == 21.0
        assert await seconds_for(engine(SLOW, connect_store=node.connect), generation(max_tokens=1)) == 1.0
        assert await seconds_for(engine(SLOW, connect_store=node.connect), generation(max_tokens=1, salt="b")) == 21.0

    run(scenario())


def test_a_single_wrong_byte_in_a_loaded_block_is_caught():
    async def scenario() -> None:
        node = MemoryNode()
        await collect(engine(SLOW, connect_store=node.connect), generation(max_tokens=1))
        node.contents[node.committed[PROMPT_BLOCKS[3]]][-1] ^= 1
        with pytest.raises(RemoteProtocolError, match=PROMPT_BLOCKS[3].hex()[:16]):
            await collect(engine(SLOW, connect_store=node.connect), generation(max_tokens=1))
        assert node.num_leases == 0

    run(scenario())


def test_a_hit_in_its_own_cache_is_exported_again_when_the_node_has_lost_it():
    async def scenario() -> None:
        node = MemoryNode()
        worker = engine(SLOW, connect_store=node.connect)
        await collect(worker, generation(max_tokens=1))
        node.committed.clear()
        assert await seconds_for(worker, generation(max_tokens=1)) == 1.0
        assert tuple(node.committed) == PROMPT_BLOCKS

    run(scenario())


def test_without_its_node_it_goes_on_and_comes_back_to_it_with_growing_delays():
    async def scenario() -> None:
        node = MemoryNode(up=False)
        worker = engine(SLOW, connect_store=node.connect)
        assert tokens_of(await collect(worker, generation(max_tokens=4))) == scripted_answer(PROMPT, 4, GREEDY)
        tries = node.num_connects
        assert 2 <= tries <= 6
        node.up = True
        await asyncio.sleep(10.0)
        await collect(worker, generation(max_tokens=1))
        assert node.num_connects == tries + 1
        assert tuple(node.committed) == PROMPT_BLOCKS
        node.up = False
        await collect(worker, generation(max_tokens=1))
        node.up = True
        node.committed.clear()
        await asyncio.sleep(10.0)
        await collect(worker, generation(max_tokens=1))
        assert tuple(node.committed) == PROMPT_BLOCKS

    run(scenario())


def test_a_node_that_was_restarted_while_nobody_asked_gets_every_block_of_the_next_prompt():
    async def scenario() -> None:
        node = MemoryNode()
        worker = engine(SLOW, connect_store=node.connect)
        await collect(worker, generation(max_tokens=1))
        node.restart()
        await collect(worker, generation(max_tokens=1, salt=Salt("another")))
        assert len(node.committed) == len(PROMPT_BLOCKS)

    run(scenario())


def test_a_node_that_was_away_during_a_prefill_is_offered_what_it_missed_as_soon_as_it_is_back():
    async def scenario() -> None:
        node = MemoryNode()
        worker = engine(SLOW, connect_store=node.connect)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(collect(worker, generation(max_tokens=1)))
            await asyncio.sleep(8.5)
            assert tuple(node.committed) == PROMPT_BLOCKS[:2]
            node.restart()
            node.up = False
            await asyncio.sleep(8.0)  # the second chunk
            assert not worker.node_connected
            node.up = True
        assert tuple(node.committed) == PROMPT_BLOCKS

    run(scenario())


def test_a_node_that_was_away_during_a_decode_is_offered_everything_as_soon_as_it_is_back():
    async def scenario() -> None:
        node = MemoryNode()
        script = Script(prefill_tokens_per_s=1000.0, token_interval=1.0)
        worker = engine(script, connect_store=node.connect)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(collect(worker, generation(max_tokens=20)))
            await asyncio.sleep(5.5)
            node.restart()
            node.up = False
            await asyncio.sleep(5.0)
            node.up = True
            await asyncio.sleep(1.0)
            assert tuple(node.committed)[: len(PROMPT_BLOCKS)] == PROMPT_BLOCKS
        answer = tokens_of(task.result())
        assert tuple(node.committed) == block_hashes(FORMAT, Salt(""), PROMPT + answer[:-1])

    run(scenario())


def test_a_node_of_another_format_is_refused_at_the_start_and_fails_no_request():
    async def scenario() -> None:
        def refuse() -> None:
            raise Incompatible("another KV format")

        worker = engine(SLOW, connect_store=refuse)
        with pytest.raises(Incompatible):
            worker.connect_node()
        assert tokens_of(await collect(worker, generation(max_tokens=4))) == scripted_answer(PROMPT, 4, GREEDY)

    run(scenario())
