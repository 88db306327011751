"""Asks one question and says when which token came: a process, since it has to sit in a network namespace.

A JSON object of ``Asking`` on stdin, one of ``Heard`` on stdout. With ``SECONDS URL ...`` it asks nothing, but waits
until all of these are healthy.
"""

from __future__ import annotations

import asyncio
import sys
import urllib.request
from collections.abc import Sequence
from time import perf_counter, sleep
from typing import Any

import aiohttp
import msgspec

from pdd.cli.ask.client import RouterClient
from pdd.cli.ask.conversation import Pins, Question, TokenPrompt
from pdd.cli.ask.measure import token_times
from pdd.core.errors import WorkerFailed
from pdd.core.request import Route
from pdd.engine.http.sse import DONE, EventReader

_POLL_S = 0.5
_TIMEOUT = aiohttp.ClientTimeout(total=300.0)


class Engine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One vLLM instance does everything."""

    url: str


class StockPair(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """vLLM's own disaggregation, in the two calls its documentation prescribes: prefill's answer says where decode
    pulls from.
    """

    prefill_url: str
    decode_url: str


class Router(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """PDD's front door. ``route`` None leaves it to the policy."""

    url: str
    route: Route | None = None


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """A greedy question of token IDs; ``salt`` gives it prefix caches of its own."""

    whom: Engine | StockPair | Router
    model: str
    token_ids: tuple[int, ...]
    max_tokens: int
    salt: str


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; ``times`` holds, for each token, seconds since the question was sent. ``route`` is PDD's."""

    token_ids: tuple[int, ...]
    times: tuple[float, ...]
    route: Route | None = None


async def ask(asking: Asking) -> Heard:
    match asking.whom:
        case Router() as router:
            return await _ask_router(router, asking)
        case Engine(url=url):
            async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
                return await _stream(session, url, _body(asking), began=perf_counter())
        case StockPair() as pair:
            async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
                return await _ask_pair(session, pair, asking)


async def _ask_router(router: Router, asking: Asking) -> Heard:
    question = Question(
        prompt=TokenPrompt(token_ids=asking.token_ids),
        model=asking.model,
        max_tokens=asking.max_tokens,
        pins=Pins(route=router.route, cache_salt=asking.salt),
        ignore_eos=True,
    )
    async with RouterClient(router.url) as client:
        answer = await client.ask(question)
    return Heard(token_ids=answer.token_ids, times=tuple(token_times(answer.spans)), route=answer.report.route)


async def _ask_pair(session: aiohttp.ClientSession, pair: StockPair, asking: Asking) -> Heard:
    began = perf_counter()
    transfer = {"do_remote_decode": True, "do_remote_prefill": False}
    body = _body(asking) | {"max_tokens": 1, "stream": False, "kv_transfer_params": transfer}
    del body["stream_options"]
    async with session.post(f"{pair.prefill_url}/v1/completions", json=body) as reply:
        prefilled = await _json_of(reply)
    body = _body(asking) | {"kv_transfer_params": prefilled["kv_transfer_params"]}
    return await _stream(session, pair.decode_url, body, began=began)


def _body(asking: Asking) -> dict[str, Any]:
    return {
        "model": asking.model,
        "prompt": list(asking.token_ids),
        "max_tokens": asking.max_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": False},
        "return_token_ids": True,
        "cache_salt": asking.salt,
    }


async def _stream(session: aiohttp.ClientSession, url: str, body: dict[str, Any], *, began: float) -> Heard:
    tokens: list[int] = []
    times: list[float] = []
    reader = EventReader()
    async with session.post(f"{url}/v1/completions", json=body) as reply:
        if reply.status != 200:
            await _json_of(reply)
        async for piece in reply.content.iter_any():
            for event in reader.feed(piece):
                if event == DONE:
                    continue
                for choice in msgspec.json.decode(event)["choices"]:
                    got = choice.get("token_ids") or ()
                    tokens.extend(got)
                    times.extend([perf_counter() - began] * len(got))
    return Heard(token_ids=tuple(tokens), times=tuple(times))


async def _json_of(reply: aiohttp.ClientResponse) -> dict[str, Any]:
    body: dict[str, Any] = await reply.json()
    if reply.status != 200:
        raise WorkerFailed(f"{reply.url} answered {reply.status}: {body}")
    return body


def _wait_until_healthy(urls: Sequence[str], timeout: float) -> None:
    deadline = perf_counter() + timeout
    for url in urls:
        while not _is_healthy(url):
            if perf_counter() > deadline:
                raise TimeoutError(f"{url} is not healthy within {timeout:g} s")
            sleep(_POLL_S)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5.0) as reply:
            return reply.status == 200
    except OSError:
        return False


def main() -> None:
    if len(sys.argv) > 1:
        _wait_until_healthy(sys.argv[2:], float(sys.argv[1]))
        return
    asking = msgspec.json.decode(sys.stdin.buffer.read(), type=Asking)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(ask(asking))))


if __name__ == "__main__":
    main()
