"""How long the router's other clients wait while one sends what costs most to read: the longest answer to a health
check.
"""

from __future__ import annotations

import asyncio
import gzip
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter

import aiohttp
import msgspec

from benchmarks.report import Result, row
from pdd.cli.deploy.deployment import run_deployment
from pdd.cli.topology.file import load_topology
from pdd.core.topology import Topology

_SIZE = 8 * 1024 * 1024 - 1024
"""Just what the router reads."""
_MAX_MODEL_TOKENS = 8192
_MOST_CHARACTERS = 81 * _MAX_MODEL_TOKENS
"""No token of this model has more: longer texts are refused unread."""
_PAUSE_S = 0.002
_BOMB_SIZE = 1024**3
_CHAT, _COMPLETION = "/v1/chat/completions", "/v1/completions"
_JSON = {"Content-Type": "application/json"}
_GZIP = _JSON | {"Content-Encoding": "gzip"}

_Attack = tuple[str, Mapping[str, str], bytes]
"""A path, headers and a body."""


def run(repetitions: int) -> Result:
    """Each body is sent by itself, to one router with its own tokenizer's model."""
    waits = asyncio.run(_measure(repetitions))
    rows = (row(name, "ms", [1e3 * wait for wait in found], "< 100") for name, found in waits.items())
    return Result(
        name="front_door",
        title="the longest answer to GET /health while one body is read, one every 2 ms",
        rows=tuple(rows),
    )


async def _measure(repetitions: int) -> dict[str, list[float]]:
    root = Path(tempfile.mkdtemp(prefix="pdd-"))
    try:
        async with run_deployment(_topology(), state_root=root) as deployment:
            url = deployment.router_url
            waits = {"nothing": [await _longest_wait(url, None) for _ in range(repetitions)]}
            for name, attack in _attacks():
                waits[name] = [await _longest_wait(url, attack) for _ in range(repetitions)]
            return waits
    finally:
        shutil.rmtree(root)


def _topology() -> Topology:
    packaged = load_topology("default")
    router = msgspec.structs.replace(packaged.router, port=0)
    return msgspec.structs.replace(packaged, router=router, max_model_tokens=_MAX_MODEL_TOKENS)


def _attacks() -> Iterator[tuple[str, _Attack]]:
    bomb = gzip.compress(b"a" * _BOMB_SIZE, compresslevel=9)
    yield "1 MB of gzip that holds 1 GiB", (_CHAT, _GZIP, bomb)
    file = gzip.compress(b"")
    yield "8 MB of empty files of gzip", (_CHAT, _GZIP, file * (_SIZE // len(file)))
    yield "8 MB of emoji", _chat("\U0001f600", _SIZE // 4)
    yield "8 MB of escaped emoji", _chat(r"\ud83d\ude00", _SIZE // 12)
    yield "8 MB of special tokens", _chat("<|im_end|>", _SIZE // 10)
    yield "as much text as may fit", _chat("<", _MOST_CHARACTERS)
    yield "as many emoji as may fit", _chat("\U0001f600", _MOST_CHARACTERS)
    yield "as many special tokens as may fit", _chat("<|im_end|>", _MOST_CHARACTERS // 10)
    yield "8 MB in a wrong field", (_CHAT, _JSON, b'{"what": "' + b"x" * _SIZE + b'"}')
    yield "8 MB of empty lists", (_COMPLETION, _JSON, b'{"prompt": [' + b"[]," * (_SIZE // 3) + b"1]}")
    yield "8 MB of nested lists", (_COMPLETION, _JSON, b'{"prompt": [' + b"[[]]," * (_SIZE // 5) + b"1]}")
    yield "8 MB of empty texts", (_COMPLETION, _JSON, b'{"prompt": [' + b'"",' * (_SIZE // 3) + b'""]}')
    yield "8 MB of fields", (_CHAT, _JSON, b"{" + b",".join(b'"%x":1' % n for n in range(_SIZE // 10)) + b"}")
    yield "8 MB of token IDs", (_COMPLETION, _JSON, b'{"prompt": [' + b"12345," * (_SIZE // 6) + b"1]}")
    yield "8 MB of messages", _messages()
    yield (
        "8 MB of an unfinished body",
        (_CHAT, _JSON, b'{"messages": [' + b'{"role": "user", "content": "a,b"},' * (_SIZE // 36)),
    )


def _chat(piece: str, count: int) -> _Attack:
    return _CHAT, _JSON, b'{"messages": [{"role": "user", "content": "' + piece.encode() * count + b'"}]}'


def _messages() -> _Attack:
    """A conversation of as many turns as may be, each of 4 KB."""
    turns = [{"role": role, "content": "word, " * 680} for _ in range(1000) for role in ("user", "assistant")]
    return _CHAT, _JSON, msgspec.json.encode({"messages": turns})


async def _longest_wait(url: str, attack: _Attack | None) -> float:
    """In seconds, from the attack's first byte until a little after its answer."""
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        waits = group.create_task(_probe(url, over))
        await asyncio.sleep(0.2)
        if attack is not None:
            await _send(url, attack)
        await asyncio.sleep(0.5)
        over.set()
    return max(waits.result())


async def _send(url: str, attack: _Attack) -> None:
    path, headers, body = attack
    try:
        async with aiohttp.ClientSession() as http, http.post(url + path, data=body, headers=headers) as response:
            await response.read()
    except aiohttp.ClientError:
        pass  # it was turned away before it had said all


async def _probe(url: str, over: asyncio.Event) -> list[float]:
    waits: list[float] = []
    async with aiohttp.ClientSession() as http:
        while not over.is_set():
            begun = perf_counter()
            async with http.get(f"{url}/health") as response:
                await response.read()
            waits.append(perf_counter() - begun)
            await asyncio.sleep(_PAUSE_S)
    return waits
