"""The outbox: newest state, first come, and bounded."""

from __future__ import annotations

import asyncio

import pytest

from pdd.core.errors import LocalProtocolError, RemoteProtocolError
from pdd.core.units import Bytes
from pdd.kvnode.outbox import Outbox
from pdd.protocol.frames import HEADER_BYTES, MAX_CONTROL_BYTES
from pdd.protocol.peer import FROM_NODE, Pong, WatchReady
from pdd.transport.base import ConnectionLost
from pdd.transport.together import run_together

pytestmark = pytest.mark.anyio
LIMIT = Bytes(1000)


class RecordingLine:
    """Takes ``limit`` frames and then hangs up. Satisfies what an outbox uses of a connection."""

    def __init__(self, limit: int) -> None:
        self.messages: list[object] = []
        self._limit = limit

    async def send(self, frame: bytes) -> None:
        if len(self.messages) == self._limit:
            raise ConnectionLost("enough")
        self.messages.append(FROM_NODE.decode(frame[HEADER_BYTES:]))


def ready(watch: str, count: int) -> WatchReady:
    return WatchReady(watch=watch, num_ready=count)


async def written(outbox: Outbox, count: int) -> list[object]:
    line = RecordingLine(count)
    outbox.put(Pong())
    with pytest.raises(ExceptionGroup):
        await run_together(outbox.write_to(line))
    return line.messages


async def test_messages_leave_in_order():
    outbox = Outbox()
    for count in range(3):
        outbox.put(ready("w", count))
    assert await written(outbox, 3) == [ready("w", count) for count in range(3)]


async def test_a_newer_message_replaces_an_unsent_one_in_its_place():
    outbox = Outbox()
    outbox.put(ready("a", 1), key="a")
    outbox.put(ready("b", 1), key="b")
    outbox.put(ready("a", 2), key="a")
    assert await written(outbox, 2) == [ready("a", 2), ready("b", 1)]


class StuckLine:
    """A peer that never reads: what is sent never gets through."""

    async def send(self, frame: bytes) -> None:
        await asyncio.Event().wait()


async def test_a_peer_that_never_reads_is_given_up_although_the_writer_is_stuck():
    outbox = Outbox(max_bytes=LIMIT)
    async with asyncio.timeout(5):
        with pytest.raises(ExceptionGroup) as caught:
            await run_together(outbox.write_to(StuckLine()), outbox.watch_overflow(), asking_for_ever(outbox))
    (error,) = caught.value.exceptions
    assert isinstance(error, RemoteProtocolError)
    assert "unread" in str(error)


async def asking_for_ever(outbox: Outbox) -> None:
    while True:
        outbox.put(Pong())
        await asyncio.sleep(0)


async def test_what_waits_is_dropped_once_it_is_too_much_and_nothing_is_added():
    outbox = Outbox(max_bytes=LIMIT)
    for _ in range(10 * LIMIT):
        outbox.put(Pong())
    outbox.put(ready("w", 1))
    line = RecordingLine(LIMIT)
    with pytest.raises(ExceptionGroup, match="failed"):
        await run_together(outbox.write_to(line), outbox.watch_overflow())
    assert line.messages == []


async def test_replacing_an_unsent_state_takes_no_more_room():
    outbox = Outbox(max_bytes=LIMIT)
    for count in range(LIMIT):
        outbox.put(ready("w", count), key="w")
    assert await written(outbox, 1) == [ready("w", LIMIT - 1)]


async def test_a_message_too_big_for_a_frame_is_its_senders_mistake():
    with pytest.raises(LocalProtocolError):
        Outbox().put(WatchReady(watch="w" * MAX_CONTROL_BYTES, num_ready=0))
