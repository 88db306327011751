"""The engine client against servers that break every rule."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from pdd.core.errors import (
    CapacityExhausted,
    ContextTooLong,
    InvalidRequest,
    LocalProtocolError,
    Unavailable,
    WorkerFailed,
)
from pdd.core.ids import WorkerId
from pdd.core.request import GREEDY, FinishReason, TokenSpan
from pdd.core.topology import LOOPBACK, Address
from pdd.core.units import Seconds
from pdd.engine.http.client import HttpEngineClient, engine_session
from pdd.engine.http.server import ServerLimits, serve_engine
from pdd.engine.scripted.engine import Faults, Script, ScriptedEngine, scripted_answer
from tests.unit.engine.scripted_support import FORMAT, PROMPT, collect, generation, tokens_of, wait_for_open

pytestmark = pytest.mark.anyio
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
ASKED = generation(max_tokens=3)


def span(tokens: Sequence[int], finish: str = "null") -> bytes:
    return f'data: {{"choices": [{{"index": 0, "token_ids": {list(tokens)}, "finish_reason": {finish}}}]}}\n\n'.encode()


DONE = b"data: [DONE]\n\n"


class RawServer:
    """Reads one request per connection, sends ``reply``, then closes, or waits until the other side does."""

    def __init__(self, reply: bytes, *, hold: bool = False) -> None:
        self._reply = reply
        self._hold = hold
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._reply)
            await writer.drain()
            if self._hold:
                while await reader.read(65536):
                    pass
        except ConnectionError:
            pass
        finally:
            self.left.set()
            writer.close()


@asynccontextmanager
async def raw_client(reply: bytes, *, hold: bool = False, **settings: Any) -> AsyncGenerator[HttpEngineClient]:
    async with (
        listening(RawServer(reply, hold=hold)) as address,
        HttpEngineClient(WorkerId("raw"), address, **settings) as client,
    ):
        yield client


@asynccontextmanager
async def listening(raw: RawServer) -> AsyncGenerator[Address]:
    server = await asyncio.start_server(raw.serve, LOOPBACK, 0)
    try:
        yield Address(host=LOOPBACK, port=server.sockets[0].getsockname()[1])
    finally:
        server.close()


@asynccontextmanager
async def scripted_client(
    script: Script, *, idle_timeout: Seconds = Seconds(20.0), **limits: Any
) -> AsyncGenerator[tuple[ScriptedEngine, HttpEngineClient]]:
    engine = ScriptedEngine(WorkerId("e"), kv_format=FORMAT, script=script)
    async with (
        serve_engine(
            engine, host=LOOPBACK, port=0, vocab_size=script.vocab_size, limits=ServerLimits(**limits)
        ) as address,
        HttpEngineClient(WorkerId("e"), address, idle_timeout=idle_timeout) as client,
    ):
        yield engine, client


FAST = Script(prefill_tokens_per_s=1e9, token_interval=Seconds(0.0))


@pytest.mark.parametrize(
    "reply",
    [
        span([1]) + span([2]) + span([3], '"length"') + DONE,
        span([1, 2, 3], '"length"') + DONE,
        span([1, 2, 3]) + span([], '"length"') + DONE,
        span([1, 2, 3], '"length"') + b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\n' + DONE,
        b": comment\n\n" + span([1, 2]) + b": comment\n\n" + span([3], '"length"'),
        span([]) + span([1, 2, 3], '"length"') + DONE,
    ],
    ids=["single", "burst", "empty finish", "usage", "comments and no done", "empty start"],
)
async def test_the_dialects_of_other_engines_are_understood(reply: bytes):
    async with raw_client(OK + reply) as client:
        spans = await collect(client, ASKED)
    assert tokens_of(spans) == (1, 2, 3)
    assert [part.first_position for part in spans] == [0, *[part.end_position for part in spans[:-1]]]
    assert [part.finish_reason for part in spans] == [None] * (len(spans) - 1) + [FinishReason.LENGTH]


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + span([1]),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 50\r\n\r\ncut",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        OK,
        OK + DONE,
        OK + span([1]) + DONE,
        OK + span([1, 2]),
        OK + span([1, 2, 3, 4], '"length"') + DONE,
        OK + span([1, 2, 3], '"length"') + span([4]) + DONE,
        OK + span([1, 2, 3], '"length"') + span([], '"length"') + DONE,
        OK + span([1], '"abort"') + DONE,
        OK + span([1], '"length"') + DONE,
        OK + b"data: {{{\n\n",
        OK + b'data: {"choices": [{"index": 0, "first_position": 1, "token_ids": [1]}]}\n\n',
        OK + b'data: {"error": {"message": "died"}}\n\n',
        OK + b"data: " + b"x" * 5_000_000,
    ],
    ids=[
        "hang-up", "not http", "cut short", "bad chunk", "500", "500 cut short", "no such path", "empty", "only done", "no finish",
        "no finish nor done", "past max_tokens", "after finish", "finished twice", "abort", "early length", "not json", "gap",
        "error event", "endless event",
    ],
)  # fmt: skip
async def test_whatever_breaks_the_contract_is_a_failed_worker(reply: bytes):
    async with raw_client(reply) as client:
        with pytest.raises(WorkerFailed):
            await collect(client, ASKED)


async def test_tokens_before_a_broken_line_still_count():
    received: list[TokenSpan] = []

    async def collect_into(client: HttpEngineClient) -> None:
        async for part in client.generate(ASKED):
            received.append(part)  # noqa: PERF401 - must be kept when it raises

    async with raw_client(OK + span([1]) + span([2])) as client:
        with pytest.raises(WorkerFailed):
            await collect_into(client)
    assert tokens_of(received) == (1, 2)


async def test_a_line_that_breaks_after_the_finish_took_nothing_away():
    cut_short = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + span([1, 2, 3], '"length"')
    async with raw_client(cut_short) as client:
        assert tokens_of(await collect(client, ASKED)) == (1, 2, 3)


@pytest.mark.parametrize("reply", [b"", OK, OK + span([1])], ids=["no headers", "no span", "after a span"])
async def test_silence_is_a_failed_worker_after_the_idle_timeout(reply: bytes):
    async with raw_client(reply, hold=True, idle_timeout=Seconds(0.1)) as client:
        with pytest.raises(WorkerFailed):
            async with asyncio.timeout(5):
                await collect(client, ASKED)


async def test_keep_alives_hold_the_idle_timeout_off_during_a_long_prefill():
    slow = Script(prefill_tokens_per_s=len(PROMPT) / 1.2, token_interval=Seconds(0.0), prefill_chunk_tokens=1000)
    async with scripted_client(slow, keep_alive=Seconds(0.05), idle_timeout=Seconds(0.8)) as (_, client):
        assert tokens_of(await collect(client, ASKED)) == scripted_answer(PROMPT, 3, GREEDY)


async def test_nobody_listening_is_unavailable():
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))
        address = Address(host=LOOPBACK, port=unused.getsockname()[1])
        async with HttpEngineClient(WorkerId("down"), address) as client:
            with pytest.raises(Unavailable, match="down") as failure:
                await collect(client, ASKED)
            with pytest.raises(Unavailable):
                await client.info()
    assert failure.value.retry_after_s > 0


async def test_a_connection_that_is_never_accepted_is_unavailable_after_the_connect_timeout():
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind((LOOPBACK, 0))
        full.listen(0)
        host, port = full.getsockname()
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex((host, port))
        async with HttpEngineClient(
            WorkerId("full"), Address(host=host, port=port), connect_timeout=Seconds(0.2)
        ) as client:
            with pytest.raises(Unavailable):
                await collect(client, ASKED)


@pytest.mark.parametrize(
    ("head", "body", "kind"),
    [
        ("400 Bad", '{"error": {"message": "no", "param": "top_p", "code": null}}', InvalidRequest),
        ("400 Bad", '{"error": {"message": "no", "code": "context_length_exceeded"}}', ContextTooLong),
        ("503 Busy\r\nRetry-After: 9", '{"error": {"message": "no"}}', Unavailable),
        ("429 Busy\r\nRetry-After: 9", '{"error": {"message": "no", "code": "capacity_exhausted"}}', CapacityExhausted),
    ],
)
async def test_refusals_come_back_as_what_they_are(head: str, body: str, kind: type[Exception]):
    reply = f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    async with raw_client(reply) as client:
        with pytest.raises(kind, match="no") as refusal:
            await collect(client, ASKED)
    assert type(refusal.value) is kind
    if isinstance(refusal.value, Unavailable):
        assert refusal.value.retry_after_s == 9.0


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b" " * 1_000_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{",
        b"",
    ],
)
async def test_an_engine_that_does_not_describe_itself_is_not_up(reply: bytes):
    async with raw_client(reply) as client:
        with pytest.raises(Unavailable):
            await client.info()


async def test_a_vllm_that_lacks_our_middleware_is_not_up_and_says_so():
    async with raw_client(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as client:
        with pytest.raises(Unavailable, match=r"--middleware pdd\.plugins\.vllm\.middleware\.DescribeEngine"):
            await client.info()


async def test_closing_the_generator_cuts_the_connection_at_once():
    raw = RawServer(OK + span([1]), hold=True)
    async with listening(raw) as address, HttpEngineClient(WorkerId("raw"), address) as client:
        async with aclosing(client.generate(ASKED)) as spans:
            assert (await anext(spans)).tokens == (1,)
            assert not raw.left.is_set()
        async with asyncio.timeout(2):
            await raw.left.wait()


async def test_cancelling_before_any_answer_aborts_at_the_engine():
    async with scripted_client(Script(faults=Faults(hang_after_tokens=0))) as (engine, client):
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(collect(client, ASKED))
            await wait_for_open(engine, 1)
            task.cancel()
        await wait_for_open(engine, 0)


async def test_finished_streams_reuse_their_connection():
    connections: set[int] = set()

    async with scripted_client(FAST) as (_, client):
        for _ in range(5):
            await collect(client, ASKED)
            connector = client._session.connector
            connections.update(id(held[0]) for pool in connector._conns.values() for held in pool)
    assert len(connections) == 1


async def test_a_client_of_a_given_session_leaves_it_open_and_a_client_without_one_must_be_entered():
    async with engine_session() as session:
        async with HttpEngineClient(WorkerId("e"), Address(host=LOOPBACK, port=1), session=session):
            pass
        assert not session.closed
    with pytest.raises(LocalProtocolError):
        await anext(HttpEngineClient(WorkerId("e"), Address(host=LOOPBACK, port=1)).generate(ASKED))


async def test_two_hundred_streams_run_at_once_through_one_session():
    script = Script(prefill_tokens_per_s=1e9, faults=Faults(hang_after_tokens=1), max_running=200)
    async with scripted_client(script) as (engine, client):
        streams = [client.generate(generation(attempt=index)) for index in range(200)]
        for stream in streams:
            await anext(stream)
        assert engine.num_open == 200
        for stream in streams:
            await stream.aclose()
        await wait_for_open(engine, 0)
