"""More requests than main decode's node has room for, on a slow line: only those that have room send anything."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from pdd.cli.ask.conversation import ReceivedAnswer
from pdd.core.errors import Unavailable
from pdd.core.topology import Topology
from pdd.core.units import Bytes, Seconds
from pdd.engine.catalog import find_model
from tests.support.live import Live, live, packaged_topology, question_of, right_answer, token_prompt, until

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(120)]

PROMPT_TOKENS = 3000
ANSWER_TOKENS = 180


def one_fits(*, max_queue: float) -> Topology:
    """Most of another's KV would fit beside it. The line carries a prompt's KV in 2 s, prefill takes 1.5 s."""
    topology = packaged_topology("scripted", rate=800_000)
    longest = PROMPT_TOKENS + ANSWER_TOKENS
    block_bytes = find_model(topology.model).kv_format(topology.block_tokens).block_bytes
    arena = Bytes(int(1.9 * longest) // topology.block_tokens * block_bytes)
    nodes = tuple(
        msgspec.structs.replace(node, arena_bytes=arena) if node.name == "node-md" else node for node in topology.nodes
    )
    admission = msgspec.structs.replace(topology.router.admission, max_queue_s=Seconds(max_queue))
    router = msgspec.structs.replace(topology.router, admission=admission)
    return msgspec.structs.replace(topology, nodes=nodes, router=router, max_model_tokens=longest)


async def ask(deployment: Live, number: int, max_tokens: int = ANSWER_TOKENS) -> ReceivedAnswer | None:
    """None: it was turned away."""
    prompt = token_prompt(PROMPT_TOKENS, seed=number)
    question = question_of(deployment.topology, prompt, max_tokens, salt=str(number))
    try:
        answer = await deployment.ask(question)
    except Unavailable:
        return None
    assert answer.token_ids == right_answer(question)
    return answer


async def sent_to_main(deployment: Live) -> int:
    return sum((await deployment.node_stats("node-md")).received_bytes.values())


async def test_three_that_are_turned_away_have_sent_nothing():
    async with live(one_fits(max_queue=4.0)) as deployment:
        block_bytes = (await deployment.node_stats("node-md")).block_bytes
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ask(deployment, number)) for number in range(4)]
        answers = [task.result() for task in asking]
        assert answers.count(None) == 3
        await deployment.until_clean()
        own = PROMPT_TOKENS // deployment.topology.block_tokens * block_bytes
        assert own <= await sent_to_main(deployment) <= 1.05 * own


async def test_those_that_may_wait_are_served_one_after_the_other():
    async with live(one_fits(max_queue=60.0)) as deployment:
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ask(deployment, number)) for number in range(3)]
        assert None not in [task.result() for task in asking]
        await deployment.until_clean()


async def test_an_answer_of_one_token_waits_for_nobody():
    async with live(one_fits(max_queue=60.0)) as deployment:
        async with asyncio.TaskGroup() as group:
            long = group.create_task(ask(deployment, 0))
            await until(lambda: decodes(deployment), "an answer that has begun")
            assert await ask(deployment, 1, max_tokens=1) is not None
            assert not long.done()
        await deployment.until_clean()


async def decodes(deployment: Live) -> bool:
    return await deployment.running("RLD") + await deployment.running("MD") > 0
