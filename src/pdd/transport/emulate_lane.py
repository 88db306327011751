"""One direction of an emulated line on the event loop, and the pipes that carry connections' bytes across it.

``pdd.transport.shaping`` decides what moves when; this moves it. Memory per pipe is bounded by the line's window.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque
from collections.abc import Callable

from pdd.core.units import Bytes, Seconds
from pdd.transport.shaping import Line, LineClock, LineSettings


class Quantum:
    """A piece of a flow on its way, and who wants to know where it is."""

    __slots__ = ("on_arrival", "on_served")

    def __init__(self, on_served: Callable[[], None], on_arrival: Callable[[], None]) -> None:
        self.on_served = on_served
        self.on_arrival = on_arrival


class Lane:
    """One direction of the link, run on the event loop's time."""

    def __init__(self, settings: LineSettings, clock: LineClock, seed: int) -> None:
        self._line: Line[object, Quantum] = Line(settings, random.Random(seed).random)  # noqa: S311 (jitter)
        self._clock = clock
        self._changed = asyncio.Event()

    @property
    def settings(self) -> LineSettings:
        return self._line.settings

    @property
    def sent_bytes(self) -> int:
        return self._line.sent_bytes

    def change(self, settings: LineSettings) -> None:
        self._line.change(settings, self._now())
        self._changed.set()

    def wake(self) -> None:
        """Looks again: the clock stopped or went on."""
        self._changed.set()

    def send(self, flow: object, size: int, quantum: Quantum) -> None:
        self._line.send(flow, Bytes(size), quantum)
        self._changed.set()

    def forget(self, flow: object) -> None:
        self._line.forget(flow)

    async def cross(self) -> None:
        """Returns after one delay of the line: what a packet without payload takes."""
        arrived = asyncio.Event()
        flow = object()
        try:
            self._line.signal(flow, Quantum(_ignore, arrived.set), self._now())
            self._changed.set()
            await arrived.wait()
        finally:
            self._line.forget(flow)

    async def run(self) -> None:
        """Moves quanta for ever."""
        while True:
            self._changed.clear()
            if not self._clock.paused:
                self._move(self._now())
            await self._until_next_event()

    def _move(self, now: Seconds) -> None:
        while (served := self._line.serve(now)) is not None:
            served.on_served()
        while (arrived := self._line.deliver(now)) is not None:
            arrived[1].on_arrival()

    async def _until_next_event(self) -> None:
        at = self._line.next_event()
        real = None if at is None else self._clock.real_time_of(at)
        timer = None if real is None else asyncio.get_running_loop().call_at(real, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _now(self) -> Seconds:
        return self._clock.now(Seconds(asyncio.get_running_loop().time()))


class ResetByPeer(Exception):
    """One end of the connection is gone: the other end is to be reset too."""


class Pipe:
    """One direction of one connection: reads its source a quantum at a time, writes to its sink what has arrived."""

    def __init__(self, lane: Lane, source: socket.socket, sink: socket.socket) -> None:
        self._lane = lane
        self._source = source
        self._sink = sink
        self._arrived: deque[bytes | None] = deque()
        self._pending_bytes = 0
        self._served = asyncio.Event()
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def carry(self) -> None:
        """Returns when a half-close has been passed on.

        Raises:
            ResetByPeer: one end is gone, and the other is to know it now.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read())
                group.create_task(self._write())
        finally:
            self._lane.forget(self)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wait_for_room()
            try:
                data = await loop.sock_recv(self._source, self._lane.settings.quantum)
            except OSError:
                await self._put_on_line(None)
                return
            await self._put_on_line(data)
            if not data:
                return

    async def _put_on_line(self, data: bytes | None) -> None:
        """Returns once it is on the line, so that a flow never has two quanta queued there.

        Empty data marks a half-close, None a reset: they follow the flow's last byte.
        """
        size = 0 if data is None else len(data)
        self._pending_bytes += size
        self._served.clear()
        self._lane.send(self, size, Quantum(self._served.set, lambda: self._arrive(data)))
        await self._served.wait()

    def _arrive(self, data: bytes | None) -> None:
        self._arrived.append(data)
        self._news.set()

    async def _wait_for_room(self) -> None:
        while self._pending_bytes > self._lane.settings.window:
            self._room.clear()
            await self._room.wait()

    async def _write(self) -> None:
        while True:
            data = await self._next_arrival()
            if data is None:
                raise ResetByPeer
            try:
                await self._write_to_sink(data)
            except OSError as error:
                await self._lane.cross()
                raise ResetByPeer from error
            if not data:
                return

    async def _next_arrival(self) -> bytes | None:
        while not self._arrived:
            self._news.clear()
            await self._news.wait()
        return self._arrived.popleft()

    async def _write_to_sink(self, data: bytes) -> None:
        if not data:
            self._sink.shutdown(socket.SHUT_WR)
            return
        await asyncio.get_running_loop().sock_sendall(self._sink, data)
        self._pending_bytes -= len(data)
        self._room.set()


def _ignore() -> None:
    pass
