"""HTTP from strangers: whoever breaks it, or says nothing, is told so or let go, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from aiohttp import web

from pdd.core.errors import InvalidRequest
from pdd.core.units import Bytes, Seconds
from pdd.transport.http_bodies import read_body
from pdd.transport.http_serving import HttpLimits, serve_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

SECRET = b"my-secret-prompt"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
SHORT = Seconds(0.3)


@dataclass(frozen=True, slots=True)
class Reply:
    status_line: str
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return json.loads(self.body)["error"]["code"]


class Client:
    """Bytes to and from a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        return Reply(head[0], headers, await self.reader.readexactly(int(headers["content-length"])))

    async def ends(self) -> None:
        """Waits until the server hangs up; nothing may come before."""
        with contextlib.suppress(ConnectionResetError):
            assert await self.reader.read() == b""


class Server:
    """A server under test: /health answers at once, /echo when the body is there, /wait when it is let."""

    def __init__(self) -> None:
        self.port = 0
        self.go_on = asyncio.Event()
        self.waits = asyncio.Event()

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def echo(self, request: web.Request) -> web.Response:
        try:
            return web.Response(body=await read_body(request, limit=Bytes(1000), timeout=Seconds(30.0)))
        except InvalidRequest as refused:
            return web.json_response({"error": {"code": refused.code}}, status=400)

    async def wait(self, _: web.Request) -> web.Response:
        self.waits.set()
        await self.go_on.wait()
        return web.json_response({})

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(limits: HttpLimits | None = None) -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.add_routes([web.get("/health", server.health), web.post("/echo", server.echo), web.get("/wait", server.wait)])
    limits = limits or HttpLimits()
    async with serve_http(app, host="127.0.0.1", port=0, grace=Seconds(0.1), limits=limits) as address:
        server.port = address.port
        yield server


def post(*headers: bytes, body: bytes = b"") -> bytes:
    return b"POST /echo HTTP/1.1\r\nHost: x\r\n" + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


BROKEN = {
    "a bad chunk size": (post(b"Transfer-Encoding: chunked", body=b"ZZ\r\n" + SECRET), 400, "invalid_http"),
    "both lengths": (post(b"Transfer-Encoding: chunked", b"Content-Length: 3", body=SECRET), 400, "invalid_http"),
    "two lengths": (post(b"Content-Length: 3", b"Content-Length: 5", body=SECRET), 400, "invalid_http"),
    "a negative length": (post(b"Content-Length: -3", body=SECRET), 400, "invalid_http"),
    "an unknown method": (b"FOO /" + SECRET + b" HTTP/1.1\r\n\r\n", 400, "invalid_http"),
    "no HTTP": (SECRET + b"\r\n\r\n", 400, "invalid_http"),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00" + SECRET, 400, "invalid_http"),
    "a long line": (b"GET /" + SECRET * 1000 + b" HTTP/1.1\r\n\r\n", 431, "head_too_large"),
    "a long header": (b"GET /health HTTP/1.1\r\nX: " + SECRET * 1000 + b"\r\n\r\n", 431, "head_too_large"),
    "an unknown coding": (
        post(b"Content-Encoding: br", b"Content-Length: 16", body=SECRET),
        415,
        "unsupported_encoding",
    ),
    "two codings": (
        post(b"Content-Encoding: identity", b"Content-Encoding: br", b"Content-Length: 16", body=SECRET),
        415,
        "unsupported_encoding",
    ),
    "a made-up coding": (
        post(b"Content-Encoding: zz", b"Content-Length: 16", body=SECRET),
        415,
        "unsupported_encoding",
    ),
    "an expectation": (post(b"Expect: " + SECRET, b"Content-Length: 0"), 417, "invalid_request"),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_broken_http_is_answered_in_json_and_no_byte_of_it_is_logged(what: str, caplog: pytest.LogCaptureFixture):
    data, status, code = BROKEN[what]
    with caplog.at_level(logging.DEBUG):
        async with serving() as server, server.client() as client:
            await client.say(data)
            reply = await client.reply()
            await client.ends()
    assert reply.status_line.startswith(f"HTTP/1.1 {status} ")
    assert reply.headers["content-type"].startswith("application/json")
    assert reply.code == code
    assert SECRET not in reply.body
    assert SECRET.decode() not in caplog.text
    assert "Traceback" not in caplog.text


def compressed(body: bytes) -> bytes:
    return post(b"Content-Encoding: gzip", b"Content-Length: %d" % len(body), body=body)


async def test_a_compressed_body_is_inflated_and_its_connection_goes_on_whatever_is_in_it():
    async with serving() as server, server.client() as client:
        await client.say(compressed(gzip.compress(b"hello")))
        assert (await client.reply()).body == b"hello"
        for body, code in ((SECRET, "invalid_body"), (gzip.compress(bytes(1001)), "body_too_large")):
            await client.say(compressed(body))
            assert (await client.reply()).code == code
        await client.say(HEALTH)
        assert "200" in (await client.reply()).status_line


async def test_a_compressed_body_that_nobody_reads_is_not_inflated_so_that_nobody_finds_out_that_it_is_none():
    async with serving() as server, server.client() as client:
        await client.say(compressed(SECRET).replace(b"POST /echo", b"GET /health"))
        assert "200" in (await client.reply()).status_line


async def test_a_body_that_breaks_on_its_way_ends_the_wait_for_it():
    async with serving() as server, server.client() as client:
        await client.say(post(b"Transfer-Encoding: chunked", body=b"5\r\nhello\r\n"))
        await asyncio.sleep(0.05)
        await client.say(b"ZZ\r\n")
        assert (await client.reply()).code == "invalid_body"


async def test_a_head_that_is_never_finished_ends_its_connection_however_much_of_it_comes():
    async with serving(HttpLimits(head_timeout=SHORT)) as server, server.client() as client:
        await client.say(b"GET /health HTTP/1.1\r\n")

        async def go_on() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await client.say(b"X-Slow: 1\r\n")
                    await asyncio.sleep(0.02)

        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            slow = tasks.create_task(go_on())
            await client.ends()
            slow.cancel()


async def test_a_connection_that_says_nothing_is_ended():
    async with serving(HttpLimits(head_timeout=SHORT)) as server, server.client() as client:
        async with asyncio.timeout(5):
            await client.ends()


async def test_the_second_head_has_the_same_deadline_and_idleness_another():
    limits = HttpLimits(head_timeout=SHORT, idle_timeout=Seconds(60.0))
    async with serving(limits) as server, server.client() as client, asyncio.timeout(5):
        await client.say(HEALTH)
        await client.reply()
        await asyncio.sleep(2 * SHORT)
        await client.say(HEALTH)
        assert "200" in (await client.reply()).status_line
        await client.say(HEALTH[:10])
        await client.ends()


async def test_an_idle_connection_is_ended():
    async with serving(HttpLimits(idle_timeout=SHORT)) as server, server.client() as client, asyncio.timeout(5):
        await client.say(HEALTH)
        await client.reply()
        await client.ends()


async def test_an_answer_may_take_longer_than_any_of_these_deadlines():
    async with serving(HttpLimits(head_timeout=SHORT, idle_timeout=SHORT)) as server, server.client() as client:
        await client.say(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(3 * SHORT)
        server.go_on.set()
        assert "200" in (await client.reply()).status_line


async def test_over_the_limit_the_one_that_waited_longest_goes():
    async with serving(HttpLimits(max_connections=2)) as server, contextlib.AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(server.client()) for _ in range(2)]
        await first.say(HEALTH)
        await first.reply()
        third = await stack.enter_async_context(server.client())
        await second.ends()
        for client in (first, third):
            await client.say(HEALTH)
            assert "200" in (await client.reply()).status_line


async def test_over_the_limit_a_newcomer_is_refused_when_all_others_are_being_served():
    async with serving(HttpLimits(max_connections=1)) as server, server.client() as first:
        await first.say(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await server.waits.wait()
        async with server.client() as second:
            reply = await second.reply()
            assert (reply.status_line, reply.code) == ("HTTP/1.1 503 Service Unavailable", "too_many_connections")
            assert reply.headers["retry-after"] == "1"
            await second.ends()
        server.go_on.set()
        assert "200" in (await first.reply()).status_line
        async with server.client() as third:
            await third.say(HEALTH)
            assert "200" in (await third.reply()).status_line


async def test_pipelined_requests_are_answered_in_turn():
    async with serving() as server, server.client() as client:
        await client.say(20 * post(b"Content-Length: 2", body=b"hi"))
        assert [(await client.reply()).body for _ in range(20)] == 20 * [b"hi"]
