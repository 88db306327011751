"""The front door over the real driver: relays, stop strings and next turns through HTTP.

Scripted engines, real time.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from pdd.core.units import Seconds
from pdd.engine.catalog import find_model
from pdd.engine.scripted.engine import Script
from pdd.router.api.admission import Limits
from tests.support.front_door import MODEL, Door, front_door
from tests.support.worlds import BLOCK_TOKENS, World, WorldSpec, running_world

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

VOCAB_SIZE = find_model(MODEL).vocab_size
FAST = Script(
    prefill_tokens_per_s=50_000.0, prefill_chunk_tokens=32, token_interval=Seconds(0.002), vocab_size=VOCAB_SIZE
)
SPEC = WorldSpec(blocks_per_s=100.0, line_delay=0.002, prefill=FAST, relay_decode=FAST, main_decode=FAST)
LONG_QUESTION = {"role": "user", "content": "where does the answer end? " * 10}


@asynccontextmanager
async def deployment() -> AsyncGenerator[tuple[Door, World]]:
    limits = Limits(max_model_tokens=2048)
    async with running_world(SPEC) as world, front_door(world.driver, limits=limits) as door:
        yield door, world


async def ask(door: Door, messages: list, *, max_tokens: int = 60, pdd: dict | None = None, **fields) -> dict:
    """An unstreamed, greedy, traced answer of exactly ``max_tokens``, unless something stops it."""
    status, body, _ = await door.chat(
        messages=messages,
        temperature=0,
        max_tokens=max_tokens,
        ignore_eos=True,
        pdd={"trace": True, **(pdd or {})},
        **fields,
    )
    assert status == 200, body
    return body


def tokens_of(body: dict) -> list[int]:
    return [token for span in body["pdd"]["spans"] for token in span["token_ids"]]


async def nothing_is_held(world: World) -> None:
    async with asyncio.timeout(20):
        while world.driver.num_open or world.driver.num_transfers:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await world.check_idle()


@pytest.mark.parametrize("handoff", ["one_shot", "catch_up"])
async def test_a_relayed_answer_reads_like_a_direct_one(handoff):
    long = 400  # the line takes 170 ms for the prompt's blocks; relay decode alone would take 800 ms for the answer
    async with deployment() as (door, world):
        pins = {"route": "relay", "handoff": handoff, "handoff_after_tokens": 20}
        relayed = await ask(door, [LONG_QUESTION], max_tokens=long, pdd=pins)
        direct = await ask(door, [LONG_QUESTION], max_tokens=long, pdd={"route": "direct", "cache_salt": "cold"})
        await nothing_is_held(world)
    assert relayed["pdd"]["spans"][0]["role"] == "prefill"
    assert {span["role"] for span in relayed["pdd"]["spans"]} == {"prefill", "relay_decode", "main_decode"}
    assert {span["role"] for span in direct["pdd"]["spans"]} == {"prefill", "main_decode"}
    assert tokens_of(relayed) == tokens_of(direct)
    assert relayed["choices"] == direct["choices"]
    assert relayed["pdd"]["report"]["route"] == "relay"
    assert relayed["pdd"]["report"]["tokens_by_role"]["relay_decode"] >= 20


@pytest.mark.parametrize("after", [5, 20, 24, 40])
async def test_a_stop_string_ends_the_answer_wherever_in_the_relay_it_is_found(after):
    pins = {"route": "relay", "handoff": "one_shot", "handoff_after_tokens": 20}
    async with deployment() as (door, world):
        whole = await ask(door, [LONG_QUESTION], pdd=pins)
        text = whole["choices"][0]["message"]["content"]
        stop = text[after : after + 6]
        first = text.index(stop)
        cut = await ask(door, [LONG_QUESTION], pdd={**pins, "cache_salt": "cold"}, stop=[stop])
        await nothing_is_held(world)
    assert cut["choices"][0]["message"]["content"] == text[:first]
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert tokens_of(cut) == tokens_of(whole)[: cut["usage"]["completion_tokens"]]


async def test_the_next_turn_misses_only_what_is_new_at_main_decode():
    async with deployment() as (door, world):
        first = await ask(door, [LONG_QUESTION], max_tokens=100)
        await nothing_is_held(world)
        following = [LONG_QUESTION, first["choices"][0]["message"], {"role": "user", "content": "and then?"}]
        second = await ask(door, following, max_tokens=10)
        await nothing_is_held(world)
    new_tokens = second["usage"]["prompt_tokens"] - first["usage"]["prompt_tokens"] - 100
    assert 0 < new_tokens < 64
    assert second["pdd"]["report"]["missing_blocks_at_main"] <= new_tokens // BLOCK_TOKENS + 1
    assert first["pdd"]["report"]["missing_blocks_at_main"] > second["pdd"]["report"]["missing_blocks_at_main"]


async def test_clients_that_leave_at_any_moment_leave_nothing_behind():
    async with deployment() as (door, world):
        body = json.dumps({"model": MODEL, "messages": [LONG_QUESTION], "stream": True, "ignore_eos": True}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        host, port = door.url.removeprefix("http://").split(":")
        for num_events in (0, 1, 2, 10, 30):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + body)
            await writer.drain()
            for _ in range(num_events):
                await reader.readuntil(b"data: {")
            writer.close()
            await writer.wait_closed()
        await nothing_is_held(world)
        async with asyncio.timeout(5):
            while await door.metric("pdd_requests_in_flight"):
                pass
        assert (await ask(door, [LONG_QUESTION]))["usage"]["completion_tokens"] == 60
