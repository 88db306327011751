"""The outbox: newest state, first come, and bounded."""

from __future__ import annotations

import pytest

from pdd.core.errors import RemoteProtocolError
from pdd.kvnode.outbox import MAX_WAITING, Outbox
from pdd.protocol.frames import HEADER_BYTES
from pdd.protocol.peer import FROM_NODE, Pong, WatchReady
from pdd.transport.base import ConnectionLost
from pdd.transport.together import run_together

pytestmark = pytest.mark.anyio


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


async def test_a_peer_that_never_reads_is_given_up():
    outbox = Outbox()
    for _ in range(MAX_WAITING + 1):
        outbox.put(Pong())
    with pytest.raises(RemoteProtocolError, match="unread"):
        await outbox.write_to(RecordingLine(0))
