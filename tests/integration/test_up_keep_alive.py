"""A stream that stands in line, or whose prompt is long: its connection is kept alive from a real process."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from pdd.core.units import Seconds
from tests.support.live import Live, live, packaged_topology, token_prompt

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(60)]

COMMENT = b": still working\n\n"


async def stream(deployment: Live, seed: int) -> bytes:
    prompt = list(token_prompt(600, seed=seed).token_ids)
    body = {"prompt": prompt, "max_tokens": 5, "ignore_eos": True, "stream": True}
    async with deployment.http.post(f"{deployment.url}/v1/completions", json=body) as reply:
        assert reply.status == 200
        return await reply.read()


async def test_a_long_prefill_and_the_queue_behind_it_are_not_silent():
    packaged = packaged_topology("scripted", P={"prefill_tokens_per_s": 400.0})
    router = msgspec.structs.replace(packaged.router, keep_alive_s=Seconds(0.3), max_open_requests=1)
    async with live(msgspec.structs.replace(packaged, router=router)) as deployment:
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(stream(deployment, seed)) for seed in (1, 2)]
        first, second = sorted((task.result() for task in both), key=lambda text: text.count(COMMENT))
        assert first.startswith(COMMENT), "prefill takes a second and a half"
        assert second.count(COMMENT) > first.count(COMMENT), "and the other waits for it"
        assert first.endswith(b"data: [DONE]\n\n")
        assert second.endswith(b"data: [DONE]\n\n")
