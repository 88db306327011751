"""A router that is told to stop tells its clients, from a real process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import aiohttp
import pytest

from tests.support.live import QUICK_RESTARTS, Live, live, packaged_topology, token_prompt, until

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(90)]

PROMPT = list(token_prompt(600).token_ids)
BODY = {"model": "scripted", "prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True}


@dataclass(kw_only=True)
class Clients:
    """One that streams and one that does not, both in the middle of an answer of 3000 tokens."""

    http: aiohttp.ClientSession
    url: str
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def unstreamed(self) -> tuple[int, str | None, dict]:
        async with self.http.post(self.url, json=BODY) as reply:
            return reply.status, reply.headers.get("Retry-After"), await reply.json()

    async def streamed(self) -> str:
        text = ""
        async with self.http.post(self.url, json={**BODY, "stream": True}) as reply:
            async for piece in reply.content.iter_any():
                text += piece.decode()
                self.begun.set()
        return text


async def check_both_are_told(deployment: Live, stop: Callable[[], Awaitable[None]]) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(60), asyncio.TaskGroup() as group:
        clients = Clients(http=http, url=f"{deployment.url}/v1/completions")
        whole = group.create_task(clients.unstreamed())
        stream = group.create_task(clients.streamed())
        await clients.begun.wait()
        await until(lambda: is_decoding(deployment), "two generations")
        await stop()
        status, retry_after, body = await whole
        assert (status, retry_after) == (503, "1")
        assert body["error"]["message"] == "the router is stopping"
        *_, error, end = (await stream).split("\n\n")
        assert error.startswith("event: error\ndata: ")
        assert "the router is stopping" in error
        assert end == ""


async def test_sigterm_in_mid_answer_reaches_every_client_as_an_error():
    async with live(packaged_topology("scripted"), timing=QUICK_RESTARTS) as deployment:

        async def stop() -> None:
            os.kill(deployment.pid("router"), signal.SIGTERM)

        await check_both_are_told(deployment, stop)
        await deployment.until_back("router")
        await deployment.until_healthy()
        await deployment.until_clean()


async def test_the_end_of_a_whole_deployment_in_mid_answer_does_too():
    async with AsyncExitStack() as held:
        deployment = await held.enter_async_context(live(packaged_topology("scripted")))
        await check_both_are_told(deployment, held.aclose)


async def is_decoding(deployment: Live) -> bool:
    return await deployment.running("MD") >= 2
