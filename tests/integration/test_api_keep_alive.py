"""Streams that have nothing to say for a while, and clients that never listen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from pathlib import Path

import pytest

from pdd.core.errors import Unavailable
from pdd.core.request import FinishReason
from pdd.core.units import Seconds
from pdd.router.api.admission import Limits
from tests.support.fake_service import FakeService, Step
from tests.support.front_door import MODEL, Door, front_door, parse_events
from tests.support.live import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

SOON = Limits(max_model_tokens=256, keep_alive_s=Seconds(0.05))
COMMENT = ": still working\n\n"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True}


class Paused:
    """An answer of two tokens that waits before the first or the second; or one that waits and fails."""

    def __init__(self, *, before: int = 0, error: Exception | None = None) -> None:
        self.go_on = asyncio.Event()
        gates = [self.go_on if index == before else None for index in range(2)]
        tokens = [Step(tokens=(70 + index,), gate=gate) for index, gate in enumerate(gates)]
        answer = [*tokens, Step(finish=FinishReason.LENGTH)]
        self.service = FakeService(script=lambda _: [Step(gate=self.go_on, error=error)] if error else answer)


async def begun(door: Door, paused: Paused, num_comments: int) -> str:
    """The whole body of a stream, which goes on after so many comments."""
    text = ""
    async with door.http.post(f"{door.url}/v1/chat/completions", json=BODY) as response:
        assert response.status == 200
        async for piece in response.content.iter_any():
            text += piece.decode()
            if text.count(COMMENT) >= num_comments:
                paused.go_on.set()
    return text


@pytest.mark.parametrize("before", [0, 1], ids=["before its first token", "between two"])
async def test_a_silent_stream_says_that_it_lives_and_then_what_it_would_have_said(before: int):
    paused = Paused(before=before)
    async with front_door(paused.service, limits=SOON) as door:
        text = await begun(door, paused, 3)
    assert text.startswith(COMMENT) is (before == 0)
    unpaused = Paused(before=before)
    unpaused.go_on.set()
    async with front_door(unpaused.service) as door:
        expected = await begun(door, unpaused, 0)
    assert COMMENT not in expected
    chunks = parse_events(text.replace(COMMENT, ""))
    assert [set_aside(chunk) for chunk in chunks] == [set_aside(chunk) for chunk in parse_events(expected)]


def set_aside(chunk):
    return chunk if isinstance(chunk, str) else {key: value for key, value in chunk.items() if key != "id"}


async def test_what_fails_later_is_an_error_event_then():
    paused = Paused(error=Unavailable("nobody is there", retry_after_s=Seconds(2.0)))
    async with front_door(paused.service, limits=SOON) as door:
        text = await begun(door, paused, 1)
    *comments, error = text.split("\n\n")[:-1]
    assert set(comments) == {COMMENT.strip()}
    assert error.startswith('event: error\ndata: {"error":{"message":"nobody is there"')


async def test_before_that_all_is_as_ever():
    paused = Paused(error=Unavailable("nobody is there", retry_after_s=Seconds(2.0)))
    paused.go_on.set()
    async with front_door(paused.service, limits=SOON) as door:
        status, body, headers = await door.chat(stream=True)
    assert (status, headers["Retry-After"]) == (503, "2")
    assert body["error"]["message"] == "nobody is there"


async def test_an_answer_in_one_piece_is_not_begun_early():
    paused = Paused(error=Unavailable("nobody is there", retry_after_s=Seconds(2.0)))
    async with front_door(paused.service, limits=SOON) as door:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(door.chat())
            await asyncio.sleep(4 * SOON.keep_alive_s)
            paused.go_on.set()
        assert asking.result()[0] == 503


async def test_a_client_that_leaves_during_a_silence_is_noticed_and_nothing_goes_on_for_it():
    paused = Paused(before=0)
    async with front_door(paused.service, limits=SOON) as door:
        async with door.http.post(f"{door.url}/v1/chat/completions", json=BODY) as response:
            await response.content.readany()
        async with asyncio.timeout(5):
            await paused.service.all_left.wait()
        assert paused.service.cancelled == 1


async def test_a_hundred_clients_that_never_read_cost_little_and_go_when_their_time_is_over():
    """Each is sent megabytes that it does not take, until its sockets are full: every event bears the model's name."""
    limits = Limits(max_model_tokens=256, write_timeout_s=Seconds(3.0))
    service = FakeService(script=lambda _: [Step(tokens=(70,))] * 1000)
    long_name = "m" * 50_000
    async with (
        front_door(service, limits=limits, model_name=long_name) as door,
        contextlib.AsyncExitStack() as clients,
    ):
        before = resident_bytes()
        for _ in range(100):
            clients.enter_context(await deaf_client(door))
        await until(lambda: service.running == 100, "a hundred streams")
        most = 0
        async with asyncio.timeout(40):
            while service.running:
                most = max(most, resident_bytes())
                await asyncio.sleep(0.1)
        assert most - before < 50e6
        assert service.cancelled == 100


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def deaf_client(door: Door) -> socket.socket:
    """Asks for a stream, and reads nothing of it."""
    host, port = door.url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "x", "stream": True}).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (host, int(port)))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    await loop.sock_sendall(client, head + body)
    return client
